// What the kernels share. The launcher puts in front of this file what it specialises on: real (float or double),
// WINDOW, SHELLS, the prices of the shells, cheapest first, as PRICES, and the shell of each move as SHELL_OF.
//
// A row (the K moves of one source pixel) lives in the registers of one thread; neighbouring threads have neighbouring
// pixels, so loads are coalesced. A sample belongs to a group of one or more blocks, whose warps share its rows by fixed
// chunks. In a chunk the rows that need work are packed first: most rows of a digit are black, and near the answer most
// rows of any image stay as they are. A chunk's sums are reduced in its warp, and the sums of all chunks are added in
// one order, whoever computed them: no bit of a sample depends on the batch or on the GPU. Between the passes over a
// sample its blocks wait for each other (Group::sync): a whole solve is one launch, and the host is never waited for.

#ifndef THREADS
#define THREADS 128
#endif

constexpr int K = WINDOW * WINDOW, REACH = WINDOW / 2, HOME = K / 2;
constexpr int LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
constexpr int MAX_CHUNK = 256;  // rows
constexpr int BLOCKS = K <= 25 ? 8 : K <= 49 ? 5 : 3;  // on a multiprocessor, at least: bounds the registers of a thread
constexpr int MAX_EVALUATIONS = 60;
constexpr bool SINGLE = sizeof(real) == 4;
constexpr double EPSILON = SINGLE ? 1.1920929e-7 : 2.220446049250313e-16;

__device__ constexpr double PRICE[SHELLS] = {PRICES};
__device__ constexpr int SHELL[K] = {SHELL_OF};

__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }
__device__ __forceinline__ real largest(real a, real b) { return a > b ? a : b; }
__device__ __forceinline__ double largest64(double a, double b) { return a > b ? a : b; }

// ------------------------------------------------------------------------------------------------ blocks of a sample

struct Shape {
    int batch, channels, height, width, chunk, groups, members;
    __device__ int rows() const { return channels * height * width; }
    __device__ int chunks() const { return (rows() + chunk - 1) / chunk; }
};

// N sums and one maximum (of numbers ≥ 0) over the rows of a sample.
template <int N>
struct Totals {
    double sum[N] = {};
    double most = 0;

    __device__ __forceinline__ void add(const Totals& other) {
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += other.sum[i];
        most = largest64(most, other.most);
    }
};

constexpr int TOTALS = 11;  // numbers that a chunk may need

struct Group {
    int first, stride, member, members, generation, parity;
    unsigned* arrivals;
    double* partial;  // two sets, used in turn: one is read while the other is written

    __device__ Group(const Shape& shape, unsigned* arrivals_, double* partials) {
        first = blockIdx.x / shape.members;
        stride = shape.groups;
        member = blockIdx.x % shape.members;
        members = shape.members;
        generation = parity = 0;
        arrivals = arrivals_ + first;
        partial = partials + (long long)first * 2 * shape.chunks() * TOTALS;
    }

    // All blocks of the group have come this far, and see what the others have written.
    __device__ void sync() {
        __syncthreads();
        if (members == 1) return;
        generation += members;
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrivals, 1u);
            while (*(volatile unsigned*)arrivals < (unsigned)generation) {}
            __threadfence();
        }
        __syncthreads();
    }

    // Over the lanes of a warp, in a fixed order; the first lane gets the result.
    template <int N>
    __device__ void over_warp(Totals<N>& mine) {
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2) {
            Totals<N> other;
#pragma unroll
            for (int i = 0; i < N; i++) other.sum[i] = __shfl_down_sync(0xffffffffu, mine.sum[i], distance);
            other.most = __shfl_down_sync(0xffffffffu, mine.most, distance);
            mine.add(other);
        }
    }

    // visit(row, totals) for all rows of the sample that keep(row) wants, shared among the warps; keep sees every row
    // once. Everyone gets the totals.
    template <int N, class Keep, class Visit>
    __device__ Totals<N> over_rows(const Shape& shape, Keep keep, Visit visit) {
        __shared__ short lists[WARPS][MAX_CHUNK];
        __shared__ Totals<N> warps[WARPS];
        const int rows = shape.rows(), chunks = shape.chunks(), warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
        Totals<N>* stage = (Totals<N>*)(partial + parity * chunks * TOTALS);
        parity ^= 1;
        for (int chunk = member * WARPS + warp; chunk < chunks; chunk += members * WARPS) {
            const int begin = chunk * shape.chunk, end = min(rows, begin + shape.chunk);
            int count = 0;
#pragma unroll 1
            for (int row = begin + lane; row - lane < end; row += LANES) {
                const bool wanted = row < end && keep(row);
                const unsigned mask = __ballot_sync(0xffffffffu, wanted);
                if (wanted) lists[warp][count + __popc(mask & ((1u << lane) - 1))] = (short)(row - begin);
                count += __popc(mask);
            }
            __syncwarp();
            Totals<N> mine;
            for (int i = lane; i < count; i += LANES) visit(begin + lists[warp][i], mine);
            over_warp(mine);
            if (lane == 0) stage[chunk] = mine;
            __syncwarp();
        }
        sync();
        Totals<N> mine;
        for (int chunk = threadIdx.x; chunk < chunks; chunk += THREADS) mine.add(stage[chunk]);
        over_warp(mine);
        if (lane == 0) warps[warp] = mine;
        __syncthreads();
        Totals<N> all;
        for (int other = 0; other < WARPS; other++) all.add(warps[other]);
        __syncthreads();
        return all;
    }

    // visit(row) for all rows of the sample, shared among the blocks.
    template <class Visit>
    __device__ void each_row(const Shape& shape, Visit visit) {
        const int rows = shape.rows();
        for (int row = member * THREADS + threadIdx.x; row < rows; row += members * THREADS) visit(row);
    }
};

// ------------------------------------------------------------------------------------------------------------- moves

// Where a pixel can send its mass to, or get it from.
struct Pixel {
    int h, w, height, width;
    __device__ Pixel(const Shape& shape, int row) : height(shape.height), width(shape.width) {
        const int place = row % (height * width);
        h = place / width;
        w = place % width;
    }
    __device__ __forceinline__ int shift(int k) const { return (k / WINDOW - REACH) * width + k % WINDOW - REACH; }
    __device__ __forceinline__ bool reaches(int k) const {
        return (unsigned)(h + k / WINDOW - REACH) < (unsigned)height &&
               (unsigned)(w + k % WINDOW - REACH) < (unsigned)width;
    }
    // Whether the k-th move of some pixel ends here; it starts at row − shift(k).
    __device__ __forceinline__ bool receives(int k) const { return reaches(K - 1 - k); }
};

// An image at the destination of each move, infinite outside. All loads before any comparison: they overlap.
__device__ __forceinline__ void look_around(real (&there)[K], const real* image, const Pixel& pixel, int row) {
#pragma unroll
    for (int k = 0; k < K; k++) there[k] = pixel.reaches(k) ? image[row + pixel.shift(k)] : (real)infinity();
}

// λ times the price of each shell. In float32 one ulp of λ can move 2e-6 of the budget, so that it comes in two parts.
struct Toll {
    real high[SHELLS], low[SHELLS];
    __device__ explicit Toll(double lam) {
#pragma unroll
        for (int s = 0; s < SHELLS; s++) {
            const double toll = lam * PRICE[s];
            high[s] = (real)toll;
            low[s] = (real)(toll - (double)high[s]);
        }
    }
    __device__ __forceinline__ real off(real value, int k) const {
        return SINGLE ? (value - high[SHELL[k]]) - low[SHELL[k]] : value - high[SHELL[k]];
    }
};

// ------------------------------------------------------------------------------------------ the projection of a row

// The threshold t with Σ max(0, s − t) = mass (Michelot 1986), where s has been made relative to its maximum, which is
// returned. The threshold only ever rises: if entries could come back, rounding could make it cycle for ever.
struct Row {
    real top, threshold;
    int size;

    __device__ __forceinline__ Row(real (&s)[K], real mass) {
        top = s[0];
#pragma unroll
        for (int k = 1; k < K; k++) top = largest(top, s[k]);
#pragma unroll
        for (int k = 0; k < K; k++) s[k] -= top;
        threshold = -mass;
        size = K + 1;
        while (true) {
            real sum = 0;
            int count = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (s[k] > threshold) {
                    sum += s[k];
                    count++;
                }
            }
            if (count == size || count == 0) break;
            size = count;
            threshold = largest(threshold, (sum - mass) / (real)count);
        }
    }
};

// What a projected row spends, and how fast that falls with λ.
__device__ __forceinline__ void spend(const real (&s)[K], const Row& row, real& spent, real& spread) {
    real cost = 0, sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (k != HOME && s[k] > row.threshold) {
            const real price = (real)PRICE[SHELL[k]];
            cost += price * (s[k] - row.threshold);
            sum += price;
            squares += price * price;
        }
    }
    spent = cost;
    spread = largest(0, squares - sum * sum / (real)row.size);
}

// --------------------------------------------------------------------------------------------------- the search for λ

// operators/dual.py, one sample: where the spending, which never rises with λ, meets the budget.
struct Search {
    double budget, aim, most, least, lam, low, high, spent_low, spent_high, last_miss;
    int evaluations;
    bool converged, stuck;

    __device__ Search(double budget_, double tol, double start, double upper) {
        budget = budget_;
        aim = budget * (1 - tol / 2);
        most = budget * (1 - tol / 8);
        least = budget * (1 - tol);
        lam = start < upper ? start : upper;
        low = 0;
        high = upper;
        spent_low = last_miss = infinity();
        spent_high = 0;
        evaluations = 0;
        converged = stuck = false;
    }

    __device__ bool done() const { return converged || stuck || evaluations >= MAX_EVALUATIONS; }

    __device__ double middle() const {
        return high > 16 * low ? (low > 0 ? sqrt(low * high) : high / 16) : (low + high) / 2;
    }

    __device__ bool inside(double at) const { return at > low && at < high; }

    // Spending and slope (≤ 0) at lam; sets the next lam.
    __device__ void seen(double spent, double slope) {
        evaluations++;
        const bool over = spent > most;
        if (over) {
            low = lam;
            spent_low = spent;
        } else {
            high = lam;
            spent_high = spent;
        }
        converged = !over && (spent >= least || lam == 0);
        if (converged) return;
        // Far above the budget the spending falls like a square in λ, and Newton's method on its root goes straight there.
        const double far = spent > 2 * aim ? 2 * (spent - sqrt(spent * aim)) : spent - aim;
        const double newton = lam - far / slope;
        const bool at_zero = spent_low == infinity() && !(newton > 0);
        const double miss = fabs(spent - aim);
        const double secant = low + (high - low) * ((spent_low - aim) / (spent_low - spent_high));
        double step = inside(newton) ? newton : secant;
        if (!(miss <= last_miss / 2)) step = middle();
        if (!inside(step)) step = middle();
        last_miss = miss;
        const bool narrow = spent_low < infinity() && high - low <= EPSILON / 4 * high;
        stuck = !at_zero && (!inside(step) || narrow);
        if (!stuck) lam = at_zero ? 0 : step;
    }
};
