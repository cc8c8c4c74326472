// ggml's blocks in plain C++, part of kernels_generic.hpp.
namespace penstock {
namespace {

// What a block's integers come to, times its scales (in float16) and those of the rows.
template <int R> void end_block(const Tile &tile, int64_t block, const int32_t (&counts)[R][kPanel], const uint8_t *scales,
                                Sums<R> &sums) {
    const auto *halves = reinterpret_cast<const uint16_t *>(scales);
    for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < kPanel; ++i) {
            const float found = static_cast<float>(counts[r][i]) * half_to_float(halves[i]);
            sums[r][i] = multiply_add(found, tile.scales[r * tile.shape->scale_groups() + block], sums[r][i]);
        }
}

// Blocks of 32 inputs with a scale, of bytes.
template <int R> struct Q8_0 {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const int64_t groups = tile.shape->groups();
        const uint8_t *weights = tile.panel;
        for (int64_t group = 0; group < groups; ++group, weights += kLine) {
            int32_t counts[R][kPanel];
            for (int r = 0; r < R; ++r)
                for (int64_t i = 0; i < kPanel; ++i) counts[r][i] = 128 * tile.sums[r * groups + group];
            for (int64_t line = 0; line < 8; ++line, weights += 2 * kLine)
                for (int r = 0; r < R; ++r) {
                    const int8_t *x = values_of<R, int8_t>(tile, group * 8 + line, r);
                    for (int64_t i = 0; i < kPanel; ++i)
                        for (int64_t j = 0; j < 4; ++j) counts[r][i] += weights[4 * i + j] * x[j];
                }
            end_block<R>(tile, group, counts, weights, sums);
        }
        store<R>(tile, sums);
    }
};

template <int R> struct Q4K {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const int64_t groups = tile.shape->groups();
        const uint8_t *weights = tile.panel;
        for (int64_t block = 0; block < tile.shape->scale_groups(); ++block, weights += kQ4kLines * kLine) {
            int32_t totals[R][kPanel] = {}, offsets[R][kPanel] = {};
            for (int64_t group = 0; group < 8; ++group) {
                const uint8_t *multiples = weights + (2 + 9 * group) * kLine;
                int32_t counts[R][kPanel] = {};
                for (int64_t line = 0; line < 8; ++line)
                    add_nibbles<R>(tile, (block * 8 + group) * 8 + line, multiples + (1 + line) * kLine, counts);
                for (int r = 0; r < R; ++r)
                    for (int64_t i = 0; i < kPanel; ++i) {
                        totals[r][i] += multiples[2 * i] * counts[r][i];
                        offsets[r][i] += multiples[2 * i + 1] * tile.sums[r * groups + block * 8 + group];
                    }
            }
            end_block<R>(tile, block, totals, weights, sums);
            end_block<R>(tile, block, offsets, weights + kLine, sums);
        }
        store<R>(tile, sums);
    }
};

template <int R> struct Q6K {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const int64_t groups = tile.shape->groups();
        const uint8_t *weights = tile.panel;
        for (int64_t block = 0; block < tile.shape->scale_groups(); ++block, weights += kQ6kLines * kLine) {
            int32_t totals[R][kPanel] = {};
            for (int64_t part = 0; part < 16; ++part) {
                const uint8_t *lines = weights + (1 + part / 2 * 13) * kLine;
                const auto *multiples = reinterpret_cast<const int8_t *>(lines) + part % 2 * 32;
                for (int r = 0; r < R; ++r)
                    for (int64_t i = 0; i < kPanel; ++i) {
                        int32_t count = 32 * tile.sums[r * groups + block * 16 + part];
                        for (int64_t line = part % 2 * 4; line < part % 2 * 4 + 4; ++line) {
                            const int8_t *x = values_of<R, int8_t>(tile, (block * 8 + part / 2) * 8 + line, r);
                            const uint8_t *low = lines + (1 + line) * kLine + i % 16 * 4;
                            const uint8_t *high = lines + (9 + line / 2) * kLine + i % 16 * 4;
                            for (int64_t j = 0; j < 4; ++j) {
                                const int above = high[j] >> (line % 2 * 4 + (i < 16 ? 0 : 2)) & 3;
                                count += ((low[j] >> (i < 16 ? 0 : 4) & 15) | above << 4) * x[j];
                            }
                        }
                        totals[r][i] += multiples[i] * count;
                    }
            }
            end_block<R>(tile, block, totals, weights, sums);
        }
        store<R>(tile, sums);
    }
};

} // namespace
} // namespace penstock
