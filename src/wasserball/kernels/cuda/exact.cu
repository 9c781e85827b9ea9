// The exact linear oracle (operators/oracle.py): two vertices of the ball, each pixel sending all its mass to one place,
// mixed so that the budget is spent.

// What a pixel gets for its mass where mass that arrives anywhere has a gradient and every move has a price.
struct Choice {
    real value[SHELLS];
    int move[SHELLS];

    // Of moves at one price only the best can win.
    __device__ __forceinline__ Choice(const real* gradient, const Pixel& pixel, int row) {
        real there[K];
        look_around(there, gradient, pixel, row);
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            value[s] = (real)infinity();
            move[s] = HOME;
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (there[k] < value[SHELL[k]]) {
                value[SHELL[k]] = there[k];
                move[SHELL[k]] = k;
            }
        }
    }

    // The best shell at λ; of several the cheapest.
    __device__ __forceinline__ void best(double lam, double& value_, double& price, int& move_) const {
        double least = (double)value[0] + lam * PRICE[0];
        value_ = value[0];
        price = PRICE[0];
        move_ = move[0];
#pragma unroll
        for (int s = 1; s < SHELLS; s++) {
            const double priced = (double)value[s] + lam * PRICE[s];
            if (priced < least) {
                least = priced;
                value_ = value[s];
                price = PRICE[s];
                move_ = move[s];
            }
        }
    }
};

constexpr int PROBES = 5;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exact_oracle(
    Shape shape, unsigned* arrivals, double* partials, const real* gradients, const real* masses, const double* budgets,
    double accuracy, real* bounds, int* moves, real* images, double* lams, double* spents, long long* iterations,
    bool* convergeds, double* gaps, double* shares) {
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const real *gradient = gradients + (size_t)sample * rows, *mass = masses + (size_t)sample * rows;
        // Where the two vertices send each pixel: two numbers of a move in one.
        int* chosen = moves + (size_t)sample * rows;
        real* image = images + (size_t)sample * rows;
        const double budget = budgets[sample];

        // The λ from which on a pixel keeps its mass. Values are relative to those of staying: it then counts for nothing.
        real* bound = bounds + (size_t)group.first * rows;
        auto evaluate = [&](int row, const Choice& choice, double lam, double& value, double& spent) {
            double best, price;
            int move;
            choice.best(lam, best, price, move);
            value += mass[row] * (best - (double)gradient[row]);
            spent += mass[row] * price;
        };

        Totals<3> first = group.over_rows<3>(
            shape,
            [&](int row) {
                const bool busy = mass[row] > 0;
                if (!busy) bound[row] = -1;
                return busy;
            },
            [&](int row, Totals<3>& totals) {
                const Choice choice(gradient, Pixel(shape, row), row);
                evaluate(row, choice, 0, totals.sum[0], totals.sum[1]);
                totals.sum[2] += (double)mass[row] * fabs((double)gradient[row]);
                double most = 0;
#pragma unroll
                for (int s = 1; s < SHELLS; s++) {
                    if (choice.value[s] < (real)infinity()) {
                        most = largest64(most, ((double)gradient[row] - (double)choice.value[s]) * (1 / PRICE[s]));
                    }
                }
                bound[row] = (real)(most * (1 + 2 * EPSILON));
                totals.most = largest64(totals.most, most);
            });
        double low_lam = 0, high_lam = first.most, low_value = first.sum[0], low_spent = first.sum[1];
        double high_value = 0, high_spent = 0;
        const double noise = 1e-14 * first.sum[2];
        const bool free = low_spent <= budget;
        bool converged = free, home = true;
        double lam = 0, dual = low_value;
        int evaluations = 1;
        while (!converged && evaluations < MAX_EVALUATIONS) {
            // The Lagrangians of both ends cross where no vertex was seen yet, or at the optimum. The spending, nearly
            // smooth as long as many pixels change their minds in the bracket, is likely to meet the budget at its
            // secant: both sides of that are looked at in the same pass, from near and from far. In the beginning,
            // when not even the order of magnitude is known, powers of 2 are.
            const double width = high_lam - low_lam;
            const double secant = low_lam + width * (low_spent - budget) / (low_spent - high_spent);
            double at[PROBES] = {(high_value - low_value) / (low_spent - high_spent), secant - width / 8,
                                 secant - width / 128, secant + width / 128, secant + width / 8};
#pragma unroll
            for (int probe = 1; probe < PROBES; probe++) {
                if (evaluations == 1) at[probe] = high_lam / (2 << probe);
            }
            double farthest = high_lam;
#pragma unroll
            for (int probe = 0; probe < PROBES; probe++) {
                at[probe] = largest64(at[probe], low_lam);
                at[probe] = at[probe] < high_lam ? at[probe] : high_lam;
                farthest = at[probe] < farthest ? at[probe] : farthest;
            }
            const Totals<2 * PROBES> seen = group.over_rows<2 * PROBES>(
                shape, [&](int row) { return (double)bound[row] > farthest; },
                [&](int row, Totals<2 * PROBES>& totals) {
                    const Choice choice(gradient, Pixel(shape, row), row);
#pragma unroll
                    for (int probe = 0; probe < PROBES; probe++) {
                        evaluate(row, choice, at[probe], totals.sum[2 * probe], totals.sum[2 * probe + 1]);
                    }
                });
            evaluations++;
            lam = at[0];
            dual = seen.sum[0] + lam * (seen.sum[1] - budget);
            const double below = low_value + lam * low_spent - (seen.sum[0] + lam * seen.sum[1]);
            const double mixed = high_value + (budget - high_spent) / (low_spent - high_spent) * (low_value - high_value);
            converged = below <= noise + 1e-14 * lam * low_spent || mixed - dual <= accuracy * -mixed;
#pragma unroll
            for (int probe = 0; probe < PROBES && !converged; probe++) {
                const double value = seen.sum[2 * probe], spent = seen.sum[2 * probe + 1];
                if (spent > budget && at[probe] >= low_lam) {
                    low_lam = at[probe];
                    low_value = value;
                    low_spent = spent;
                } else if (spent <= budget && at[probe] <= high_lam) {
                    high_lam = at[probe];
                    high_value = value;
                    high_spent = spent;
                    home = false;
                }
            }
        }
        // A trace below the exact share, so that rounding does not exceed the budget.
        const double share = free ? 1 : (budget - high_spent) / (low_spent - high_spent) * (1 - 1e-15);
        group.over_rows<1>(
            shape,
            [&](int row) {
                chosen[row] = HOME | HOME << 16;
                return (double)bound[row] > low_lam;
            },
            [&](int row, Totals<1>&) {
                const Choice choice(gradient, Pixel(shape, row), row);
                double value, price;
                int low, high = HOME;
                choice.best(low_lam, value, price, low);
                if (!home) choice.best(high_lam, value, price, high);
                chosen[row] = low | high << 16;
            });
        group.each_row(shape, [&](int row) {
            const Pixel pixel(shape, row);
            double sum = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (pixel.receives(k)) {
                    const int from = row - pixel.shift(k);
                    const int low = chosen[from] & 0xffff, high = chosen[from] >> 16;
                    if (low == k) sum += (high == k ? 1 : share) * mass[from];
                    else if (high == k) sum += (1 - share) * mass[from];
                }
            }
            image[row] = (real)sum;
        });
        if (group.member == 0 && threadIdx.x == 0) {
            lams[sample] = lam;
            spents[sample] = high_spent + share * (low_spent - high_spent);
            iterations[sample] = evaluations;
            convergeds[sample] = converged;
            gaps[sample] = largest64(0, high_value + share * (low_value - high_value) - dual);
            shares[sample] = share;
        }
        group.sync();  // before the next sample's bounds
    }
}

// plan ← keep · plan + weight · (share · low vertex + (1 − share) · high vertex); a thread for each row.
extern "C" __global__ void __launch_bounds__(THREADS) blend_vertices(
    Shape shape, const int* moves, const double* shares, const real* masses, const double* keeps, const double* weights,
    real* plans) {
    const int rows = shape.rows(), blocks = (rows + THREADS - 1) / THREADS;
    const int sample = blockIdx.x / blocks, row = blockIdx.x % blocks * THREADS + threadIdx.x;
    if (row >= rows) return;
    const double keep = keeps[sample], share = shares[sample];
    real* plan = plans + (size_t)sample * K * rows + row;
    if (keep != 1) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            // Not kept: nothing is left of what was there, not even where that is not finite.
            plan[k * rows] = keep == 0 ? (real)0 : (real)keep * plan[k * rows];
        }
    }
    const size_t place = (size_t)sample * rows + row;
    const double moved = weights[sample] * masses[place];
    if (moved == 0) return;
    const int low = moves[place] & 0xffff, high = moves[place] >> 16;
    plan[low * rows] += (real)(low == high ? moved : share * moved);
    if (low != high) plan[high * rows] += (real)((1 - share) * moved);
}
