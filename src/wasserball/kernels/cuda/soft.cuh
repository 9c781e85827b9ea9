// Rows as soft minima: log Σ exp(−(gradient + λC)/γ) over the moves of a pixel, and how prices are spread there.
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
