// Projected Sinkhorn (operators/sinkhorn.py): block coordinate ascent on its dual, for masses that sum to 1, in float64.
//
// β is kept with its sign turned: then it is a gradient whose soft minima, with ψ as λ and γ = 1, are those of a row.

// y > 0 such that y + log y = u, by Newton's method for log y from above.
__device__ double wright_omega(double u) {
    u = u < -800 ? -800 : u;
    const double tangent = (u - 1) / 2, far = u > 1 ? logarithm(u) : u;
    double v = far < tangent ? far : tangent;
    for (int turn = 0; turn < 5; turn++) {
        const double y = exponential(v);
        v -= (y + v - u) / (y + 1);
    }
    return exponential(v);
}

// log Σ exp(α − ψC) over all pixels that can send mass here; −∞ where none has any.
__device__ double arriving(const double* alpha, const Pixel& pixel, int row, double psi) {
    double from[K], top = -infinity();
#pragma unroll
    for (int k = 0; k < K; k++) {
        from[k] = pixel.receives(k) ? alpha[row - pixel.shift(k)] - psi * PRICE[SHELL[k]] : -infinity();
        top = largest64(top, from[k]);
    }
    if (top == -infinity()) return top;
    double total = 0;
#pragma unroll
    for (int k = 0; k < K; k++) total += exponential(from[k] - top);
    return top + logarithm(total);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ascend_sinkhorn(
    Shape shape, unsigned* arrivals, double* partials, const double* targets, const double* masses,
    const double* budgets, double gamma, double tol, int max_iterations, double* alphas, double* minus_betas,
    double* psis, double* objectives, long long* iterations, bool* convergeds) {
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    const double farthest = largest64(PRICE[SHELLS - 1], 1e-300);
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const double *target = targets + (size_t)sample * rows, *mass = masses + (size_t)sample * rows;
        double *alpha = alphas + (size_t)sample * rows, *minus_beta = minus_betas + (size_t)sample * rows;
        const double budget = budgets[sample];
        auto busy = [&](int row) { return mass[row] > 0; };
        auto every = [](int) { return true; };
        auto prepare = [&](int row) {
            if (!busy(row)) alpha[row] = -infinity();
            return busy(row);
        };
        double psi = 1, linear = 0;  // what β alone contributes to the dual

        // The best α makes the rows exact; then the plan sums to 1, and the dual objective costs nothing more.
        auto maximize_alpha = [&]() {
            const Totals<1> sent = group.over_rows<1>(shape, prepare, [&](int row, Totals<1>& all) {
                double mean, spread;
                const Soft soft(minus_beta, Pixel(shape, row), row, 1);
                alpha[row] = logarithm(mass[row]) + 1 - soft.price(psi, 1, mean, spread);
                all.sum[0] += alpha[row] * mass[row];
            });
            return sent.sum[0] + linear - psi * budget - 1;
        };
        // The best β has target − γβ = Πᵀ1.
        auto maximize_beta = [&]() {
            const Totals<1> gained = group.over_rows<1>(shape, every, [&](int row, Totals<1>& all) {
                const double aim = target[row] / gamma;
                const double arrived = arriving(alpha, Pixel(shape, row), row, psi) - 1;
                const double beta = aim - wright_omega(aim + arrived - logarithm(gamma));
                minus_beta[row] = -beta;
                all.sum[0] += beta * target[row] - gamma / 2 * (beta * beta);
            });
            return gained.sum[0];
        };
        // A Newton step on what the plan spends that stays on its side of the solution.
        auto raise_psi = [&]() {
            const Totals<2> seen = group.over_rows<2>(shape, busy, [&](int row, Totals<2>& all) {
                double mean, spread;
                const Soft soft(minus_beta, Pixel(shape, row), row, 1);
                const double sum = exponential(alpha[row] + soft.price(psi, 1, mean, spread) - 1);
                all.sum[0] += sum * mean;
                all.sum[1] += sum * (spread + mean * mean);
            });
            const double spent = seen.sum[0], slope = seen.sum[1];
            const double next = spent > budget
                ? psi + (logarithm(spent) - logarithm(budget)) * spent / slope
                : psi - log1p(farthest * (budget - spent) / slope) / farthest;
            return next < 0 ? 0 : next;
        };

        group.each_row(shape, [&](int row) { minus_beta[row] = 0; });
        group.sync();
        double objective = maximize_alpha();
        bool converged = false;
        int iteration = 0;
        for (bool going = budget > 0; going && iteration < max_iterations;) {
            iteration++;
            const double before = objective;
            linear = maximize_beta();
            psi = raise_psi();
            objective = maximize_alpha();
            const double change = fabs(objective - before), allowed = tol + tol * fabs(before);
            converged = change <= allowed;
            going = change > allowed;  // false where it is not a number
        }
        if (group.member == 0 && threadIdx.x == 0) {
            psis[sample] = psi;
            objectives[sample] = objective;
            iterations[sample] = iteration;
            convergeds[sample] = converged;
        }
    }
}
