// For processors with AMX: a register is 16 rows of a line, and a product of two is added to 16 × 16 sums.
//
// Weights lie in panels as its products want them. Integer sums are those of the other instruction sets to the bit. Products of
// bfloat16 have an order of their own, so that one row, too, is multiplied here.
#include "amx.hpp"

#include <algorithm>
#include <cpuid.h>
#include <cstring>
#include <sys/syscall.h>
#include <type_traits>
#include <unistd.h>

namespace penstock {
namespace {

// Rows of a register; of two, which is what a tile has at most.
constexpr int64_t kHalfRows = kTileRegisterRows, kRows = 2 * kHalfRows;
// Steps of a weight that a register holds, one in a line.
constexpr int64_t kSlab = 16;
// From so many rows on, integers are multiplied here.
constexpr int64_t kIntegerRows = 4, kNibbleRows = 7;

// The registers in use: 0 to 3 are sums [rows 0-15, 16-31][outputs 0-15, 16-31], 4 and 5 those rows, 6 and 7 those outputs.
constexpr TileConfiguration kWhole = tile_configuration(kHalfRows, kLine);

// The compiler wants registers' numbers as they are.
struct Int8Products {
    static void upper() {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
    }
    static void lower() {
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
};

struct Bfloat16Products {
    static void upper() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    static void lower() {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
};

// The sums of a tile: [rows 0-15, 16-31][outputs 0-15, 16-31][16][16].
struct alignas(64) Sums {
    uint32_t values[2][2][kHalfRows][16];

    __m512i of(int64_t row, int half) const { return _mm512_load_si512(values[row / kHalfRows][half][row % kHalfRows]); }
};

template <typename Products> class Adder {
public:
    explicit Adder(const Tile &tile)
        : values_(reinterpret_cast<const uint8_t *>(tile.values)), stride_(apart_units(tile.shape->steps()) * 4),
          both_(tile.rows > kHalfRows) {
        configure(kWhole);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    // The products of the next slab's inputs; `weights` [16][2] lines.
    void add(const uint8_t *weights) {
        finish_writing();
        _tile_loadd(6, weights, 2 * kLine);
        _tile_loadd(7, weights + kLine, 2 * kLine);
        _tile_loadd(4, values_, stride_);
        Products::upper();
        if (both_) {
            _tile_loadd(5, values_ + kHalfRows * stride_, stride_);
            Products::lower();
        }
        values_ += kLine;
    }

    void leave(Sums &sums) const {
        _tile_stored(0, sums.values[0][0], kLine);
        _tile_stored(1, sums.values[0][1], kLine);
        if (!both_) return;
        _tile_stored(2, sums.values[1][0], kLine);
        _tile_stored(3, sums.values[1][1], kLine);
    }

private:
    const uint8_t *values_;
    int64_t stride_;
    bool both_;
};

// Asks for what is needed later, a slab at a time. Tiles that meet one panel share the asking: each asks for its own lines.
class SlabAsker {
public:
    explicit SlabAsker(const Tile &tile)
        : line_(tile.ahead), end_(tile.ahead), step_(2 * kSlab * tile.ahead_step), first_(tile.ahead_how == Ahead::lines_to_first) {}

    void ask() {
        end_ += step_;
        if (first_)
            for (; line_ < end_; line_ += kLine) _mm_prefetch(reinterpret_cast<const char *>(line_), _MM_HINT_T0);
        else
            for (; line_ < end_; line_ += kLine) _mm_prefetch(reinterpret_cast<const char *>(line_), _MM_HINT_T1);
    }

private:
    const uint8_t *line_, *end_;
    int64_t step_;
    bool first_;
};

// What sums become: as floats, times the scales of outputs and rows where they are of integers, and with the bias.
template <typename Products> void write(const Tile &tile, const Sums &sums, const uint8_t *scales) {
    constexpr bool integers = std::is_same<Products, Int8Products>::value;
    const bool whole = tile.columns == kPanel;
    __m512 of_outputs[2] = {}, bias[2];
    for (int half = 0; half < 2; ++half) {
        if (integers) of_outputs[half] = _mm512_load_ps(scales + half * kLine);
        bias[half] = tile.bias && whole ? _mm512_loadu_ps(tile.bias + half * 16) : _mm512_set1_ps(-0.0f);
    }
    const auto value = [&](int64_t row, int half) {
        const __m512i sum = sums.of(row, half);
        if (!integers) return _mm512_castsi512_ps(sum);
        const __m512 all = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, broadcast(tile.totals + row)));
        return _mm512_mul_ps(_mm512_mul_ps(all, of_outputs[half]), _mm512_set1_ps(tile.scales[row]));
    };
    if (!whole) {
        for (int64_t row = 0; row < tile.rows; ++row) store(tile, row, value(row, 0), value(row, 1));
        return;
    }
    for (int64_t row = 0; row < tile.rows; ++row) {
        float *output = tile.output.row(row);
        _mm512_storeu_ps(output, _mm512_add_ps(value(row, 0), bias[0]));
        _mm512_storeu_ps(output + 16, _mm512_add_ps(value(row, 1), bias[1]));
    }
}

// Multiplies rows with a panel whose lines are as products want them.
template <typename Products> void multiply(const Tile &tile) {
    const int64_t steps = tile.shape->steps(), whole = steps / kSlab * kSlab;
    const uint8_t *weights = tile.panel;
    Sums sums;
    Adder<Products> adder(tile);
    SlabAsker asker(tile);
    for (int64_t step = 0; step < whole; step += kSlab, weights += kSlab * 2 * kLine) {
        asker.ask();
        adder.add(weights);
    }
    if (whole < steps) {
        // What is behind a panel's last step is no weight.
        alignas(64) uint8_t rest[kSlab * 2 * kLine] = {};
        std::memcpy(rest, weights, static_cast<size_t>((steps - whole) * 2 * kLine));
        adder.add(rest);
    }
    adder.leave(sums);
    write<Products>(tile, sums, tile.panel + tile.shape->scales_at());
}

void int8(const Tile &tile) {
    if (tile.rows < kIntegerRows) return avx512_vnni_kernels()->tile[static_cast<int>(Format::int8)](tile);
    multiply<Int8Products>(tile);
}

// The lines of a pair of groups as int8 has them.
void unpack_pair(const uint8_t *weights, Asker &asker, uint8_t *unpacked) {
    const __m512i nibble = _mm512_set1_epi8(15), multiples = _mm512_load_si512(weights);
    asker.ask();
    weights += kLine;
    for (int group = 0; group < 2; ++group) {
        const Unpack low(multiples, 2 * group), high(multiples, 2 * group + 1);
        for (int64_t line = 0; line < kInt4Group / 4; ++line, weights += kLine, unpacked += 2 * kLine) {
            asker.ask();
            const __m512i both = _mm512_load_si512(weights);
            _mm512_store_si512(unpacked, low(_mm512_and_si512(both, nibble)));
            _mm512_store_si512(unpacked + kLine, high(_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble)));
        }
    }
}

void int4(const Tile &tile) {
    static_assert(2 * kInt4Group == 4 * kSlab);
    if (tile.rows < kNibbleRows) return avx512_vnni_kernels()->tile[static_cast<int>(Format::int4)](tile);
    constexpr int64_t kBytes = kSlab * 2 * kLine;
    // Two by turns: one is written while the other is read.
    alignas(64) uint8_t own[2][kBytes];
    const int64_t pairs = tile.shape->groups() / 2;
    const uint8_t *scales = tile.panel + tile.shape->scales_at();
    Sums sums;
    Adder<Int8Products> adder(tile);
    Asker asker(tile);
    for (int64_t pair = 0; pair < pairs; ++pair) {
        uint8_t *unpacked = tile.unpacked ? tile.unpacked + pair * kBytes : own[pair % 2];
        unpack_pair(tile.panel + pair * kInt4Pair, asker, unpacked);
        adder.add(unpacked);
    }
    if (tile.unpacked) std::memcpy(tile.unpacked + pairs * kBytes, scales, 2 * kLine);
    adder.leave(sums);
    write<Int8Products>(tile, sums, scales);
}

void bfloat16(const Tile &tile) { multiply<Bfloat16Products>(tile); }

// `rounds` times the products of four tiles of sums.
template <typename Products> void repeat(int64_t rounds) {
    alignas(64) static const uint8_t zeros[kHalfRows * kLine] = {};
    configure(kWhole);
    _tile_loadd(4, zeros, kLine);
    _tile_loadd(5, zeros, kLine);
    _tile_loadd(6, zeros, kLine);
    _tile_loadd(7, zeros, kLine);
    for (int64_t round = 0; round < rounds; ++round) {
        Products::upper();
        Products::lower();
    }
}

constexpr int64_t kOperations = 4 * 2 * kHalfRows * kHalfRows;

int64_t compute_int8(int64_t rounds) {
    repeat<Int8Products>(rounds);
    return rounds * kOperations * 64;
}

int64_t compute_bfloat16(int64_t rounds) {
    repeat<Bfloat16Products>(rounds);
    return rounds * kOperations * 32;
}

bool is_available() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBfloat16 | kTile | kInt8;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
    // A process has to ask Linux for registers of this size (arch/x86/include/uapi/asm/prctl.h).
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

} // namespace

thread_local Configured t_configured{0, nullptr};

const Kernels *amx_kernels() {
    static const bool available = is_available();
    static const Kernels set = [] {
        Kernels with = *avx512_vnni_kernels();
        with.name = "amx";
        const auto use = [&](Format format, void (*tile)(const Tile &), int64_t from) {
            const auto at = static_cast<int>(format);
            with.tile[at] = tile;
            with.tile_rows[at] = kRows;
            with.apart_rows[at] = from;
        };
        use(Format::int8, int8, kIntegerRows);
        use(Format::int4, int4, kNibbleRows);
        use(Format::bfloat16, bfloat16, 1);
        with.wide_bfloat16 = false;
        with.attend_block = attend_block_amx;
        with.attend_head = attend_head_amx;
        with.compute[0] = compute_int8;
        with.compute[1] = compute_bfloat16;
        return with;
    }();
    return available ? &set : nullptr;
}

} // namespace penstock
