// The step at which identity + step · gradient[destination] spends what is wanted (operators/leap.py).

constexpr int ITERATIONS = 8;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) step_that_spends(
    Shape shape, unsigned* arrivals, double* partials, const real* gradients, const real* masses, const double* wanteds,
    double share, double* steps) {
    Group group(shape, arrivals, partials);
    for (int sample = group.first; sample < shape.batch; sample += group.stride) {
        const real* gradient = gradients + (size_t)sample * shape.rows();
        const real* mass = masses + (size_t)sample * shape.rows();

        auto spent = [&](double step_) {
            const real step = (real)step_;
            return group.over_rows<1>(shape, [&](int row) { return mass[row] > 0; }, [&](int row, Totals<1>& totals) {
                const real m = mass[row];
                const Pixel pixel(shape, row);
                real s[K];
#pragma unroll
                for (int k = 0; k < K; k++) {
                    s[k] = pixel.reaches(k) ? step * gradient[row + pixel.shift(k)] : -(real)infinity();
                }
                s[HOME] += m;
                real cost, spread;
                const Row found(s, m);
                spend(s, found, cost, spread);
                totals.sum[0] += cost;
            }).sum[0];
        };

        const double brightest = group.over_rows<1>(
            shape, [](int) { return true; },
            [&](int row, Totals<1>& totals) { totals.most = largest64(totals.most, mass[row]); }).most;
        const double most = share * spent(1e6 * brightest), wanted = wanteds[sample], goal = wanted < most ? wanted : most;
        double step = 1e-6 * brightest;
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            step *= goal / spent(step);
            if (!(step < infinity())) step = 0;
        }
        if (group.member == 0 && threadIdx.x == 0) steps[sample] = step;
    }
}
