// The projection of plan + step · gradient[destination] onto the ball (operators/projection.py), a sample a group.

__device__ __forceinline__ void targets(
    real (&s)[K], const real* plan, const real* gradient, real step, const Pixel& pixel, int row, int rows) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        s[k] = pixel.reaches(k) ? plan[k * rows + row] + step * gradient[row + pixel.shift(k)] : -(real)infinity();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) project(
    Shape shape, unsigned* arrivals, double* partials, const real* plans, const real* gradients, const double* steps,
    const real* masses, const double* budgets, const double* starts, double tol, real* bounds, real* outs, real* images,
    double* lams, double* spents, long long* iterations, bool* convergeds, double* gaps) {
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const real *plan = plans + (size_t)sample * K * rows, *gradient = gradients + (size_t)sample * rows;
        const real* mass = masses + (size_t)sample * rows;
        real *out = outs + (size_t)sample * K * rows, *image = images + (size_t)sample * rows;
        // The λ from which on a row stays at home: max (G_ij − G_ii + x_i) / C_ij (Prop. 2, sharper, for each row).
        real* bound = bounds + (size_t)group.first * rows;
        const real step = (real)steps[sample];
        const double budget = budgets[sample], start = starts[sample];

        auto evaluate = [&](int row, const Toll& toll, real (&s)[K], Totals<2>& totals) {
#pragma unroll
            for (int k = 0; k < K; k++) s[k] = toll.off(s[k], k);
            const Row found(s, mass[row]);
            real spent, spread;
            spend(s, found, spent, spread);
            totals.sum[0] += spent;
            totals.sum[1] += spread;
        };

        const Toll first(start);
        Totals<2> seen = group.over_rows<2>(
            shape,
            [&](int row) {
                const bool busy = mass[row] > 0;
                if (!busy) bound[row] = -1;
                return busy;
            },
            [&](int row, Totals<2>& totals) {
                real s[K];
                targets(s, plan, gradient, step, Pixel(shape, row), row, rows);
                real most = 0;
#pragma unroll
                for (int k = 0; k < K; k++) {
                    if (k != HOME) most = largest(most, (s[k] - s[HOME] + mass[row]) * (real)(1 / PRICE[SHELL[k]]));
                }
                bound[row] = most *= (real)(1 + 4 * EPSILON);
                totals.most = largest64(totals.most, most);
                evaluate(row, first, s, totals);
            });
        const double upper = seen.most;
        Search search(budget, tol, start, upper);
        search.seen(start < upper ? seen.sum[0] : 0, -seen.sum[1]);
        while (budget > 0 && !search.done()) {
            const Toll toll(search.lam);
            seen = group.over_rows<2>(
                shape, [&](int row) { return (double)bound[row] > search.lam; },
                [&](int row, Totals<2>& totals) {
                    real s[K];
                    targets(s, plan, gradient, step, Pixel(shape, row), row, rows);
                    evaluate(row, toll, s, totals);
                });
            search.seen(seen.sum[0], -seen.sum[1]);
        }
        // Where no λ lands in the tolerated band the lower end overspends by a rounding error, which stays home below.
        const double excess = budget > 0 && search.stuck ? search.spent_low - budget : 0;
        double lam = search.converged ? search.lam : search.stuck ? search.low : search.high;
        if (!(budget > 0)) lam = upper;
        const Toll toll(lam);
        Totals<1> spent = group.over_rows<1>(
            shape,
            [&](int row) {
                if ((double)bound[row] > lam) return true;
#pragma unroll
                for (int k = 0; k < K; k++) out[k * rows + row] = k == HOME && mass[row] > 0 ? mass[row] : 0;
                return false;
            },
            [&](int row, Totals<1>& totals) {
                real s[K];
                targets(s, plan, gradient, step, Pixel(shape, row), row, rows);
#pragma unroll
                for (int k = 0; k < K; k++) s[k] = toll.off(s[k], k);
                const Row found(s, mass[row]);
#pragma unroll
                for (int k = 0; k < K; k++) {
                    const real entry = largest(0, s[k] - found.threshold);
                    out[k * rows + row] = entry;
                    if (k != HOME && entry > 0) totals.sum[0] += PRICE[SHELL[k]] * (double)entry;
                }
            });
        while (spent.sum[0] > budget) {
            const real share = (real)(budget / spent.sum[0] * (1 - 2 * EPSILON));
            spent = group.over_rows<1>(
                shape, [&](int row) { return (double)bound[row] > lam; },
                [&](int row, Totals<1>& totals) {
                    real moved = 0;
#pragma unroll
                    for (int k = 0; k < K; k++) {
                        if (k != HOME) {
                            const real entry = share * out[k * rows + row];
                            out[k * rows + row] = entry;
                            moved += entry;
                            totals.sum[0] += PRICE[SHELL[k]] * (double)entry;
                        }
                    }
                    out[HOME * rows + row] = largest(0, mass[row] - moved);
                });
        }
        group.each_row(shape, [&](int row) {
            const Pixel pixel(shape, row);
            real sum = (double)bound[row] > lam ? 0 : mass[row];
#pragma unroll
            for (int k = 0; k < K; k++) {
                const int from = row - pixel.shift(k);
                if (pixel.receives(k) && (double)bound[from] > lam) sum += out[k * rows + from];
            }
            image[row] = sum;
        });
        if (group.member == 0 && threadIdx.x == 0) {
            lams[sample] = lam;
            spents[sample] = spent.sum[0];
            iterations[sample] = search.evaluations;
            convergeds[sample] = !(budget > 0) || search.converged || search.stuck;
            gaps[sample] = lam * (budget - spent.sum[0] + largest64(0, excess));
        }
        group.sync();  // before the next sample's bounds
    }
}
