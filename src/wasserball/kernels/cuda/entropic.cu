// The paper's entropic oracle (operators/oracle.py, Prop. 6–8): rows are soft minima, λ by Newton's method.
//
// exp((gradient + λC)/−γ) has exponents in the thousands. Within a shell λ does not matter, so that exponents relative
// to the shell's best are small and exact in float32; across shells they are formed in float64.

// Not inlined: unrolled over the moves of a row, it would make for minutes of compilation.
__device__ __noinline__ real exponential(real x) { return exp(x); }
__device__ __noinline__ double logarithm(double x) { return log(x); }

struct Soft {
    real best[SHELLS], weight[SHELLS];

    __device__ __forceinline__ Soft(const real* gradient, const Pixel& pixel, int row, double sharp) {
        real there[K];
        look_around(there, gradient, pixel, row);
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            best[s] = (real)infinity();
            weight[s] = 0;
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (there[k] < best[SHELL[k]]) best[SHELL[k]] = there[k];
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const real relative = (best[SHELL[k]] - there[k]) * (real)sharp;
            if (pixel.reaches(k)) weight[SHELL[k]] += exponential(relative);
        }
    }

    // log Σ exp(−(gradient + λC)/γ), and the mean and the variance of the price under these weights.
    __device__ __forceinline__ double price(double lam, double sharp, double& mean, double& spread) const {
        double top = -infinity();
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            if (weight[s] > 0) top = largest64(top, -sharp * ((double)best[s] + lam * PRICE[s]));
        }
        double total = 0;
        mean = spread = 0;
        double weighed[SHELLS];
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            weighed[s] = 0;
            if (weight[s] > 0) {
                const double relative = -sharp * ((double)best[s] + lam * PRICE[s]) - top;
                weighed[s] = (double)(weight[s] * exponential((real)relative));
            }
            total += weighed[s];
            mean += weighed[s] * PRICE[s];
        }
        mean /= total;
#pragma unroll
        for (int s = 0; s < SHELLS; s++) spread += weighed[s] * (PRICE[s] - mean) * (PRICE[s] - mean);
        spread /= total;
        return top + logarithm(total);
    }
};

// An entry of a row of unit mass: a mixture of the softmin at λ and at the other side of a jump.
__device__ __forceinline__ real unit_entry(
    double gradient, int k, double sharp, double lam, double low, double share, double total, double low_total) {
    const double price = PRICE[SHELL[k]];
    const double entry = exponential((real)(-sharp * (gradient + lam * price) - total));
    if (share == 0) return (real)entry;
    return (real)((1 - share) * entry + share * exponential((real)(-sharp * (gradient + low * price) - low_total)));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) entropic_oracle(
    Shape shape, unsigned* arrivals, double* partials, const real* gradients, const real* masses, const double* budgets,
    double gamma, double tol, double* totals_, double* low_totals, real* scales, real* images, double* lams,
    double* spents, long long* iterations, bool* convergeds, double* gaps, double* lows, double* shares) {
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    const double sharp = 1 / gamma;
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const real *gradient = gradients + (size_t)sample * rows, *mass = masses + (size_t)sample * rows;
        double *total = totals_ + (size_t)sample * rows, *low_total = low_totals + (size_t)sample * rows;
        real *scale = scales + (size_t)sample * rows, *image = images + (size_t)sample * rows;
        const double budget = budgets[sample];

        // From this λ on the budget is kept: value + λ·price ≥ gradient + γ log(everything / budget) wherever mass can go.
        auto busy = [&](int row) { return mass[row] > 0; };
        const double everything = group.over_rows<1>(shape, busy, [&](int row, Totals<1>& all) {
            const Soft soft(gradient, Pixel(shape, row), row, sharp);
#pragma unroll
            for (int s = 1; s < SHELLS; s++) {
                if (soft.weight[s] > 0) all.sum[0] += mass[row] * PRICE[s];
            }
        }).sum[0];
        const double extra = budget > 0 && everything > 0 ? gamma * logarithm(everything / budget) : 0;
        const double upper = group.over_rows<1>(shape, busy, [&](int row, Totals<1>& all) {
            const Soft soft(gradient, Pixel(shape, row), row, sharp);
#pragma unroll
            for (int s = 1; s < SHELLS; s++) {
                if (soft.weight[s] > 0) {
                    const double value = (double)soft.best[s] - gamma * logarithm(soft.weight[s]);
                    all.most = largest64(all.most, ((double)gradient[row] + extra - value) / PRICE[s]);
                }
            }
        }).most;
        Search search(budget, tol, 0, upper);
        // Where γ is so small that no λ spends the budget, both sides of the jump are looked at once more, and mixed.
        double under = 0, over = 0;
        for (int probes = 0; budget > 0 && !search.converged && probes < 2;) {
            const bool probe = search.done();
            const double at = !probe ? search.lam : probes == 0 ? search.high : search.low;
            const Totals<2> seen = group.over_rows<2>(shape, busy, [&](int row, Totals<2>& all) {
                const double m = mass[row];
                double mean, spread;
                Soft(gradient, Pixel(shape, row), row, sharp).price(at, sharp, mean, spread);
                all.sum[0] += m * mean;
                all.sum[1] += m * spread;
            });
            if (probe) {
                (probes == 0 ? under : over) = seen.sum[0];
                probes++;
            } else {
                under = seen.sum[0];
                search.seen(seen.sum[0], -seen.sum[1] * sharp);
            }
        }
        const double lam = search.converged ? search.lam : search.high;
        double share = over > under ? (budget - under) / (over - under) : 0;
        share = share < 0 ? 0 : share > 1 ? 1 : share;
        auto prepare = [&](int row) {
            if (!busy(row)) scale[row] = 0;
            return busy(row);
        };
        group.over_rows<1>(shape, prepare, [&](int row, Totals<1>&) {
            double sum = 0, mean, spread;
            const Pixel pixel(shape, row);
            const Soft soft(gradient, pixel, row, sharp);
            total[row] = soft.price(lam, sharp, mean, spread);
            low_total[row] = share > 0 ? soft.price(search.low, sharp, mean, spread) : 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (pixel.reaches(k)) {
                    sum += unit_entry(
                        gradient[row + pixel.shift(k)], k, sharp, lam, search.low, share, total[row], low_total[row]);
                }
            }
            // The rows would add up to 1 by themselves, but for rounding.
            scale[row] = sum > 0 ? (real)(mass[row] / sum) : 0;
        });
        group.each_row(shape, [&](int row) {
            const Pixel pixel(shape, row);
            double sum = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                const int from = row - pixel.shift(k);
                if (pixel.receives(k) && scale[from] > 0) {
                    sum += (double)scale[from] *
                        unit_entry(gradient[row], k, sharp, lam, search.low, share, total[from], low_total[from]);
                }
            }
            image[row] = budget > 0 ? (real)sum : mass[row];
        });
        if (group.member == 0 && threadIdx.x == 0) {
            const double spent = budget > 0 ? under + share * (over - under) : 0;
            lams[sample] = lam;
            lows[sample] = search.low;
            shares[sample] = budget > 0 ? share : -1;  // nothing moves
            spents[sample] = spent;
            iterations[sample] = search.evaluations;
            convergeds[sample] = !(budget > 0) || search.converged || search.stuck;
            gaps[sample] = lam * (budget - spent) + (lam - search.low) * share * largest64(0, over - budget);
        }
    }
}

// plan ← keep · plan + weight · answer; a thread for each row.
extern "C" __global__ void __launch_bounds__(THREADS) blend_rows(
    Shape shape, const real* gradients, const real* masses, double gamma, const double* lams, const double* lows,
    const double* shares, const double* totals_, const double* low_totals, const real* scales, const double* keeps,
    const double* weights, real* plans) {
    const int rows = shape.rows(), blocks = (rows + THREADS - 1) / THREADS;
    const int sample = blockIdx.x / blocks, row = blockIdx.x % blocks * THREADS + threadIdx.x;
    if (row >= rows) return;
    const double lam = lams[sample], low = lows[sample], share = shares[sample], sharp = 1 / gamma;
    const real keep = (real)keeps[sample], weight = (real)weights[sample];
    const real* gradient = gradients + (size_t)sample * rows;
    real* plan = plans + (size_t)sample * K * rows;
    const Pixel pixel(shape, row);
    const size_t place = (size_t)sample * rows + row;
#pragma unroll
    for (int k = 0; k < K; k++) {
        real goal = 0;
        if (share < 0) {
            goal = k == HOME ? masses[place] : 0;
        } else if (pixel.reaches(k) && scales[place] > 0) {
            goal = scales[place] * unit_entry(gradient[row + pixel.shift(k)], k, sharp, lam, low, share, totals_[place],
                                              low_totals[place]);
        }
        plan[k * rows + row] = (keep == 0 ? 0 : keep * plan[k * rows + row]) + weight * goal;
    }
}
