// A step of an attack inside ball ∩ box (operators/box_step.py): a few diagonal Newton updates of λ and μ, then the plan.

constexpr double LEAST_CURVATURE = 0.7;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) box_step(
    Shape shape, unsigned* arrivals, double* partials, const real* plans, const real* gradients, const double* steps,
    const real* masses, const double* budgets, double high, int rounds, const double* starts, const real* mus,
    real* thresholds, real* shares, real* outs, real* images, double* lams, real* new_mus, double* spents,
    bool* convergeds) {
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    const double cheapest = SHELLS > 1 ? PRICE[SHELLS > 1] : infinity();
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const real *plan = plans + (size_t)sample * K * rows, *gradient = gradients + (size_t)sample * rows;
        const real *mass = masses + (size_t)sample * rows, *mu = mus + (size_t)sample * rows;
        // The scratch of a group: where each row was cut off, and 1 − 1/(how many of its entries are left).
        real *threshold = thresholds + (size_t)group.first * rows, *share = shares + (size_t)group.first * rows;
        real *out = outs + (size_t)sample * K * rows, *image = images + (size_t)sample * rows;
        real* new_mu = new_mus + (size_t)sample * rows;
        const real step = (real)steps[sample];
        const double budget = budgets[sample];
        // From this λ on next to nothing moves. Where no row is about to change, λ is looked for by leaps of this scale.
        const double still = group.over_rows<1>(
            shape, [](int) { return true; },
            [&](int row, Totals<1>& totals) {
                totals.most = largest64(totals.most, 2 * fabs((double)(step * gradient[row])) + 2 * (double)mass[row]);
            }).most / cheapest;
        double lam = starts[sample];
        Totals<2> seen;
        for (int update = 0;; update++) {
            const bool last = update == rounds;
            const Toll toll(lam);
            const real* there = update == 0 ? mu : new_mu;

            auto scores = [&](int row, real (&s)[K]) {
                const Pixel pixel(shape, row);
#pragma unroll
                for (int k = 0; k < K; k++) {
                    const int to = row + pixel.shift(k);
                    s[k] = pixel.reaches(k)
                        ? toll.off(plan[k * rows + row] + step * gradient[to], k) - largest(0, there[to])
                        : -(real)infinity();
                }
            };

            seen = group.over_rows<2>(
                shape,
                [&](int row) {
                    const real m = mass[row];
                    bool moves = false;
                    if (m > 0) {
                        real s[K];
                        scores(row, s);
#pragma unroll
                        for (int k = 0; k < K; k++) moves |= k != HOME && s[k] - s[HOME] > -m;
                    }
                    if (!moves) {
                        threshold[row] = (real)infinity();
                        if (last) {
#pragma unroll
                            for (int k = 0; k < K; k++) out[k * rows + row] = k == HOME && m > 0 ? m : 0;
                        }
                    }
                    return moves;
                },
                [&](int row, Totals<2>& totals) {
                    real s[K];
                    scores(row, s);
                    const Row found(s, mass[row]);
                    real spent, spread;
                    spend(s, found, spent, spread);
                    totals.sum[0] += spent;
                    totals.sum[1] += spread;
                    threshold[row] = found.top + found.threshold;
                    share[row] = 1 - 1 / (real)found.size;
                    if (last) {
#pragma unroll
                        for (int k = 0; k < K; k++) out[k * rows + row] = largest(0, s[k] - found.threshold);
                    }
                });
            if (last) break;
            group.each_row(shape, [&](int row) {
                const Pixel pixel(shape, row);
                const real price = largest(0, there[row]), change = step * gradient[row];
                real sum = threshold[row] < (real)infinity() ? 0 : mass[row], curvature = 0;
#pragma unroll
                for (int k = 0; k < K; k++) {
                    const int from = row - pixel.shift(k);
                    if (pixel.receives(k) && threshold[from] < (real)infinity()) {
                        const real entry = toll.off(plan[k * rows + from] + change, k) - price - threshold[from];
                        if (entry > 0) {
                            sum += entry;
                            curvature += share[from];
                        }
                    }
                }
                new_mu[row] = largest(0, price + (sum - (real)high) / largest(curvature, (real)LEAST_CURVATURE));
            });
            double newton = lam + (seen.sum[0] - budget) / seen.sum[1];
            if (seen.sum[1] == 0) {  // no row is about to change: as far as allowed
                newton = seen.sum[0] == budget ? lam : seen.sum[0] > budget ? infinity() : 0;
            }
            newton = largest64(newton, lam / 8);
            const double farthest = 8 * lam + still / 16;
            lam = newton < farthest ? newton : farthest;
            group.sync();
        }
        const double spent = seen.sum[0];
        const double fullest = group.over_rows<1>(
            shape, [](int) { return true; },
            [&](int row, Totals<1>& totals) {
                const Pixel pixel(shape, row);
                real sum = threshold[row] < (real)infinity() ? 0 : mass[row];
#pragma unroll
                for (int k = 0; k < K; k++) {
                    const int from = row - pixel.shift(k);
                    if (pixel.receives(k) && threshold[from] < (real)infinity()) sum += out[k * rows + from];
                }
                image[row] = sum;
                totals.most = largest64(totals.most, sum);
            }).most;
        if (group.member == 0 && threadIdx.x == 0) {
            lams[sample] = lam;
            spents[sample] = spent;
            convergeds[sample] = fullest - high <= 1e-3 * high && spent <= (1 + 1e-3) * budget;
        }
    }
}
