// Projected Sinkhorn (operators/sinkhorn.py): block coordinate ascent on its dual, for masses that sum to 1, in float64.
//
// Exponentials of potentials have exponents in the tens of thousands. They are taken once for each pixel and kept as
// fraction · 2^(STEP · level); sums over a window then bring all to the highest level in it, multiply and add. Fractions
// are between 2^(−STEP/2) and 2^(STEP/2), so that a product of two of them that is four levels down is nothing.

constexpr int STEP = 256, LOWEST = -3;
constexpr double UNIT_HIGH = 0x1.62e42ep+7, UNIT_LOW = 0x1.efa39ef35793cp-17, UNIT = UNIT_HIGH + UNIT_LOW;  // STEP · log 2
constexpr int MOST = 1 << 28;                            // levels, up or down
constexpr int NOTHING = -2 * MOST, OUTSIDE = -4 * MOST;  // where there is no mass, and where there is no pixel

// Not inlined: unrolled over the moves of a row, it would make for minutes of compilation.
__device__ __noinline__ double exponential(double x) { return exp(x); }
__device__ __noinline__ double logarithm(double x) { return log(x); }

// 2^(STEP · level), 0 if that is nothing; up to level 3.
__device__ __forceinline__ double power(int level) {
    return level < LOWEST ? 0.0 : __longlong_as_double((long long)(1023 + STEP * level) << 52);
}

struct Split {
    double fraction;
    int level;
};

// exp(x)
__device__ Split split_exponential(double x) {
    const double limit = UNIT * MOST;
    x = x > limit ? limit : x < -limit ? -limit : x;
    const double n = rint(x / UNIT);
    return {exponential((x - n * UNIT_HIGH) - n * UNIT_LOW), n == n ? (int)n : 0};
}

// x · 2^(STEP · level) for an x ≥ 0 of any size
__device__ Split split(double x, int level) {
    if (x == 0) return {0.0, NOTHING};
    const int exponent = (int)(__double_as_longlong(x) >> 52) - 1023;
    int n = (exponent + STEP / 2) >> 8;
    n = n > 3 ? 3 : n < LOWEST ? LOWEST : n;
    return {x * power(-n), level + n};
}

// exp(−ψ·price) of each shell, for all threads of a block.
struct Charges {
    double fraction[SHELLS];
    int level[SHELLS];

    __device__ void set(double psi) {
        __syncthreads();
        for (int s = threadIdx.x; s < SHELLS; s += THREADS) {
            const Split one = split_exponential(-psi * PRICE[s]);
            fraction[s] = one.fraction;
            level[s] = one.level;
        }
        __syncthreads();
    }
};

// Sums of exp(potential − ψ·price) over a window, plainly and with the price and its square, all over 2^(STEP · level).
// What a pixel can reach can reach it, at the same price: the window is that of senders as well as that of receivers.
struct Window {
    double total = 0, cost = 0, square = 0;
    int level = OUTSIDE;

    __device__ __forceinline__ Window(
        const double* fractions, const int* levels, const Charges& charges, const Shape& shape, int row) {
        const Pixel pixel(shape, row);
        double shells[SHELLS] = {};
#pragma unroll
        for (int line = 0; line < K; line += WINDOW) {  // more at a time would not fit into the registers
            int there[WINDOW], top = level;
#pragma unroll
            for (int i = 0; i < WINDOW; i++) {
                const int k = line + i;
                there[i] = pixel.reaches(k) ? levels[row + pixel.shift(k)] + charges.level[SHELL[k]] : OUTSIDE;
                top = there[i] > top ? there[i] : top;
            }
            if (top > level) {
                const double less = power(level - top);
#pragma unroll
                for (int s = 0; s < SHELLS; s++) shells[s] *= less;
                level = top;
            }
#pragma unroll
            for (int i = 0; i < WINDOW; i++) {
                const int k = line + i;
                const double fraction = pixel.reaches(k) ? fractions[row + pixel.shift(k)] : 0.0;
                shells[SHELL[k]] = fma(fraction, power(there[i] - level), shells[SHELL[k]]);
            }
        }
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            const double weight = shells[s] * charges.fraction[s];
            total += weight;
            cost += weight * PRICE[s];
            square += weight * (PRICE[s] * PRICE[s]);
        }
    }

    // Of the total; −∞ where there is none.
    __device__ double log_total() const { return total == 0 ? -infinity() : logarithm(total) + level * UNIT; }
};

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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ascend_sinkhorn(
    Shape shape, unsigned* arrivals, double* partials, const double* targets, const double* masses,
    const double* budgets, double gamma, double tol, int max_iterations, double* all_senders, int* all_sender_levels,
    double* all_receivers, int* all_receiver_levels, double* betas, double* psis, double* objectives,
    long long* iterations, bool* convergeds) {
    __shared__ Charges charges;
    Group group(shape, arrivals, partials);
    const int rows = shape.rows();
    const double farthest = largest64(PRICE[SHELLS - 1], 1e-300), log_gamma = logarithm(gamma);
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const size_t start = (size_t)sample * rows;
        const double *target = targets + start, *mass = masses + start;
        double *sender = all_senders + start, *receiver = all_receivers + start;
        int *sender_level = all_sender_levels + start, *receiver_level = all_receiver_levels + start;
        const double budget = budgets[sample];
        auto busy = [&](int row) { return mass[row] > 0; };
        auto every = [](int) { return true; };
        double psi = 1, linear = 0;  // what β alone contributes to the dual

        // The best α makes the rows exact, exp(α − 1) = mass / Σ; then the plan sums to 1, and the dual objective costs
        // nothing more.
        auto maximize_alpha = [&]() {
            charges.set(psi);
            const Totals<1> sent = group.over_rows<1>(shape, busy, [&](int row, Totals<1>& all) {
                const Window window(receiver, receiver_level, charges, shape, row);
                const Split sum = split(window.total, window.level), own = split(mass[row] / sum.fraction, -sum.level);
                sender[row] = own.fraction;
                sender_level[row] = own.level;
                all.sum[0] += mass[row] * (logarithm(mass[row]) - window.log_total());
            });
            return sent.sum[0] + linear - psi * budget;
        };
        // The best β has target − γβ = Πᵀ1.
        auto maximize_beta = [&]() {
            const Totals<1> gained = group.over_rows<1>(shape, every, [&](int row, Totals<1>& all) {
                const double aim = target[row] / gamma;
                const double arriving = Window(sender, sender_level, charges, shape, row).log_total();
                const double beta = aim - wright_omega(aim + arriving - log_gamma);
                const Split own = split_exponential(beta);
                receiver[row] = own.fraction;
                receiver_level[row] = own.level;
                betas[start + row] = beta;
                all.sum[0] += gamma * (beta * aim - beta * beta / 2);
            });
            return gained.sum[0];
        };
        // A Newton step on what the plan spends that stays on its side of the solution.
        auto raise_psi = [&]() {
            const Totals<2> seen = group.over_rows<2>(shape, busy, [&](int row, Totals<2>& all) {
                const Window window(receiver, receiver_level, charges, shape, row);
                const int level = sender_level[row] + window.level;
                const double sent = sender[row] * (level > 3 ? infinity() : power(level));
                all.sum[0] += sent * window.cost;
                all.sum[1] += sent * window.square;
            });
            const double spent = seen.sum[0], slope = seen.sum[1];
            const double next = spent > budget
                ? psi + (logarithm(spent) - logarithm(budget)) * spent / slope
                : psi - log1p(farthest * (budget - spent) / slope) / farthest;
            return next < 0 ? 0 : next;
        };

        group.each_row(shape, [&](int row) {
            betas[start + row] = 0;
            sender[row] = 0;
            sender_level[row] = NOTHING;
            receiver[row] = 1;
            receiver_level[row] = 0;
        });
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
