#include "formats.hpp"

#include "half.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cstring>

namespace penstock {

namespace {

// Calls fill(panel, first output, outputs there, its zeroed stream) for every panel, on all threads.
template <typename Fill> void for_panels(const Shape &shape, uint8_t *packed, const Fill &fill) {
    pool()->run(shape.panels(), [&](int64_t panel) {
        const int64_t first = panel * kPanel;
        uint8_t *stream = packed + panel * shape.panel_bytes();
        std::memset(stream, 0, static_cast<size_t>(shape.panel_bytes()));
        fill(first, shape.outputs - first < kPanel ? shape.outputs - first : kPanel, stream);
    });
}

// Where value `input` of output `column` of a panel stands in steps of 2 · 16 · `width` values.
inline int64_t place(int64_t column, int64_t input, int64_t width) {
    return (input / width * kPanel + column) * width + input % width;
}

template <typename Value> void pack_dense(const Shape &shape, const Value *weight, uint8_t *packed) {
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        auto *values = reinterpret_cast<Value *>(stream);
        for (int64_t column = 0; column < count; ++column) {
            const Value *row = weight + (first + column) * shape.inputs;
            for (int64_t input = 0; input < shape.inputs; ++input)
                values[place(column, input, shape.inputs_per_step())] = row[input];
        }
    });
}

} // namespace

void pack_float32(const Shape &shape, const float *weight, uint8_t *packed) { pack_dense(shape, weight, packed); }

void pack_bfloat16(const Shape &shape, const uint16_t *weight, uint8_t *packed) { pack_dense(shape, weight, packed); }

void pack_int8(const Shape &shape, const int8_t *weight, const float *scales, uint8_t *packed) {
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        // A weight of 0 is 128, filling included.
        std::memset(stream, 128, static_cast<size_t>(shape.steps() * 2 * kLine));
        for (int64_t column = 0; column < count; ++column) {
            const int8_t *row = weight + (first + column) * shape.inputs;
            for (int64_t input = 0; input < shape.inputs; ++input)
                stream[place(column, input, 4)] = static_cast<uint8_t>(row[input] + 128);
        }
        std::memcpy(stream + shape.steps() * 2 * kLine, scales + first, static_cast<size_t>(count) * sizeof(float));
    });
}

namespace {

// Writes a nibble of a line: output `column` of its panel, input `within` of its group.
void put_nibble(uint8_t *lines, int64_t column, int64_t within, uint8_t q) {
    uint8_t &byte = lines[within / 4 * kLine + column % 16 * 4 + within % 4];
    byte = static_cast<uint8_t>(byte | (q & 15) << (column < 16 ? 0 : 4));
}

} // namespace

void pack_int4(const Shape &shape, const uint8_t *weight, const uint8_t *multiples, const float *scales, uint8_t *packed) {
    const int64_t given = (shape.inputs + kInt4Group - 1) / kInt4Group;
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        for (int64_t group = 0; group < given; ++group) {
            uint8_t *pair = stream + group / 2 * kInt4Pair;
            uint8_t *lines = pair + kLine + group % 2 * kInt4Group / 4 * kLine;
            const int64_t begin = group * kInt4Group, end = std::min(begin + kInt4Group, shape.inputs);
            for (int64_t column = 0; column < count; ++column) {
                const uint8_t *row = weight + (first + column) * shape.inputs;
                for (int64_t input = begin; input < end; ++input) put_nibble(lines, column, input - begin, row[input]);
                pair[multiple_at(column, group)] = multiples[(first + column) * given + group] & (kZeroAtSeven | kMostMultiple);
            }
        }
        std::memcpy(stream + shape.scales_at(), scales + first, static_cast<size_t>(count) * sizeof(float));
    });
}

namespace {

// Where some bits of an integer of two or three bits are: in which byte behind its group's first, and from which bit on.
struct Place {
    int64_t byte;
    int bit;
};

// Calls each(place, first, count) for the runs of bits of output `column` of a panel and input `within` of a group.
template <typename Each> void for_bits(int64_t bits, int64_t column, int64_t within, const Each &each) {
    const int64_t four = within % 16 / 4, byte = within / 16 * bits * kLine + column % 16 * 4 + within % 4;
    const int half = static_cast<int>(column / 16);
    if (bits == 2) each(Place{byte + four / 2 * kLine, static_cast<int>(four % 2 * 4) + 2 * half}, 0, 2);
    else if (four < 3) each(Place{byte + four * kLine, 3 * half}, 0, 3);
    else {
        each(Place{byte + half * kLine, 6}, 0, 2);
        each(Place{byte + 2 * kLine, 6 + half}, 2, 1);
    }
}

void put_bits(int64_t bits, uint8_t *lines, int64_t column, int64_t within, uint8_t q) {
    for_bits(bits, column, within, [&](const Place &place, int first, int count) {
        uint8_t &byte = lines[place.byte];
        byte = static_cast<uint8_t>(byte | (q >> first & ((1 << count) - 1)) << place.bit);
    });
}

int bits_at(int64_t bits, const uint8_t *lines, int64_t column, int64_t within) {
    int q = 0;
    for_bits(bits, column, within, [&](const Place &place, int first, int count) {
        q |= (lines[place.byte] >> place.bit & ((1 << count) - 1)) << first;
    });
    return q;
}

} // namespace

void pack_grouped(const Shape &shape, const uint8_t *weight, const uint16_t *scales, const int16_t *zeros,
                  const int32_t *order, uint8_t *packed) {
    const int64_t groups = shape.groups(), lines = shape.group_lines();
    if (order) std::memcpy(packed + shape.panels() * shape.panel_bytes(), order, static_cast<size_t>(shape.inputs) * 4);
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        for (int64_t group = 0; group < groups; ++group, stream += shape.group_bytes()) {
            const int64_t begin = group * shape.group, end = std::min(begin + shape.group, shape.inputs);
            auto *tail = reinterpret_cast<uint16_t *>(stream + lines * kLine);
            for (int64_t column = 0; column < count; ++column) {
                const uint8_t *row = weight + (first + column) * shape.inputs;
                for (int64_t input = begin; input < end; ++input) {
                    const uint8_t q = row[order ? order[input] : input];
                    if (shape.bits() == 4) put_nibble(stream, column, input - begin, q);
                    else put_bits(shape.bits(), stream, column, input - begin, q);
                }
                tail[column] = scales[(first + column) * groups + group];
                if (shape.zero_points)
                    reinterpret_cast<int16_t *>(tail)[kPanel + column] = zeros[(first + column) * groups + group];
            }
        }
    });
}

namespace {

uint16_t two_bytes(const uint8_t *at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }

void pack_q8_0(const Shape &shape, const uint8_t *raw, int64_t column, uint8_t *stream) {
    for (int64_t group = 0; group < shape.groups(); ++group, raw += 34, stream += 17 * kLine) {
        for (int64_t input = 0; input < 32; ++input)
            stream[place(column, input, 4)] = static_cast<uint8_t>(static_cast<int8_t>(raw[2 + input]) + 128);
        reinterpret_cast<uint16_t *>(stream + 16 * kLine)[column] = two_bytes(raw);
    }
}

// Half a power of two, as a bfloat16 has it.
uint16_t half_power(uint8_t exponent) {
    return static_cast<uint16_t>(exponent > 1 ? (exponent - 1) << 7 : 0x20 << exponent);
}

void pack_mxfp4(const Shape &shape, const uint8_t *raw, int64_t column, uint8_t *stream) {
    for (int64_t group = 0; group < shape.groups(); ++group, raw += 17, stream += shape.group_bytes()) {
        for (int64_t input = 0; input < 32; ++input)
            put_nibble(stream, column, input, static_cast<uint8_t>(raw[1 + input % 16] >> input / 16 * 4 & 15));
        reinterpret_cast<uint16_t *>(stream + shape.group_lines() * kLine)[column] = half_power(raw[0]);
    }
}

void pack_q4_k(const Shape &shape, const uint8_t *raw, int64_t column, uint8_t *stream) {
    for (int64_t block = 0; block < shape.scale_groups(); ++block, raw += 144, stream += kQ4kLines * kLine) {
        reinterpret_cast<uint16_t *>(stream)[column] = two_bytes(raw);
        reinterpret_cast<uint16_t *>(stream + kLine)[column] = two_bytes(raw + 2);
        const uint8_t *six = raw + 4;
        for (int64_t group = 0; group < 8; ++group) {
            const int64_t low = group % 4, top = group < 4 ? 0 : 1;
            const int scale = top ? (six[low + 8] & 15) | six[low] >> 6 << 4 : six[low] & 63;
            const int offset = top ? six[low + 8] >> 4 | six[low + 4] >> 6 << 4 : six[low + 4] & 63;
            uint8_t *lines = stream + (2 + 9 * group) * kLine;
            lines[2 * column] = static_cast<uint8_t>(scale);
            lines[2 * column + 1] = static_cast<uint8_t>(offset);
            const uint8_t *bytes = raw + 16 + group / 2 * 32;
            for (int64_t input = 0; input < 32; ++input)
                put_nibble(lines + kLine, column, input, static_cast<uint8_t>(bytes[input] >> group % 2 * 4 & 15));
        }
    }
}

void pack_q6_k(const Shape &shape, const uint8_t *raw, int64_t column, uint8_t *stream) {
    for (int64_t block = 0; block < shape.scale_groups(); ++block, raw += 210, stream += kQ6kLines * kLine) {
        reinterpret_cast<uint16_t *>(stream)[column] = two_bytes(raw + 208);
        for (int64_t group = 0; group < 8; ++group) {
            uint8_t *lines = stream + (1 + 13 * group) * kLine;
            for (int64_t half = 0; half < 2; ++half) lines[32 * half + column] = raw[192 + 2 * group + half];
            const uint8_t *low = raw + group / 4 * 64 + group % 2 * 32, *high = raw + 128 + group / 4 * 32;
            const int64_t low_shift = group % 4 / 2 * 4, high_shift = group % 4 * 2;
            for (int64_t input = 0; input < 32; ++input) {
                put_nibble(lines + kLine, column, input, static_cast<uint8_t>(low[input] >> low_shift & 15));
                const int64_t line = input / 4, at = line % 2 * 4 + (column < 16 ? 0 : 2);
                uint8_t &byte = lines[(9 + line / 2) * kLine + column % 16 * 4 + input % 4];
                byte = static_cast<uint8_t>(byte | (high[input] >> high_shift & 3) << at);
            }
        }
    }
}

} // namespace

int64_t block_row_bytes(const Shape &shape) {
    switch (shape.format) {
    case Format::mxfp4: return shape.inputs / 32 * 17;
    case Format::q8_0: return shape.inputs / 32 * 34;
    case Format::q4_k: return shape.inputs / kLargeBlock * 144;
    case Format::q6_k: return shape.inputs / kLargeBlock * 210;
    default: return 0;
    }
}

void pack_blocks(const Shape &shape, const uint8_t *raw, uint8_t *packed) {
    const auto pack = shape.format == Format::mxfp4  ? pack_mxfp4
                      : shape.format == Format::q8_0 ? pack_q8_0
                      : shape.format == Format::q4_k ? pack_q4_k
                                                     : pack_q6_k;
    const int64_t row = block_row_bytes(shape);
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        for (int64_t column = 0; column < count; ++column)
            pack(shape, raw + (first + column) * row, column, stream);
    });
}

namespace {

// Calls each(input, value) for the values of an output in ascending order, as they are stored.
template <typename Value, typename Each>
void for_dense(const Shape &shape, const uint8_t *stream, int64_t column, const Each &each) {
    const int64_t width = shape.inputs_per_step();
    const auto *values = reinterpret_cast<const Value *>(stream) + column * width;
    for (int64_t input = 0; input < shape.inputs; values += kPanel * width)
        for (int64_t i = 0; i < width && input < shape.inputs; ++i, ++input) each(input, values[i]);
}

// Calls each(input, q) for the nibbles of an output in some lines, which begin at input `first`.
template <typename Each>
void for_nibbles(const Shape &shape, const uint8_t *lines, int64_t count, int64_t column, int64_t first, const Each &each) {
    const uint8_t *bytes = lines + column % 16 * 4;
    for (int64_t line = 0; line < count; ++line, bytes += kLine)
        for (int64_t i = 0; i < 4 && first + 4 * line + i < shape.inputs; ++i)
            each(first + 4 * line + i, bytes[i] >> (column < 16 ? 0 : 4) & 15);
}

void unpack_int4(const Shape &shape, const uint8_t *stream, int64_t column, float *row) {
    const float scale = reinterpret_cast<const float *>(stream + shape.scales_at())[column];
    for (int64_t group = 0; group * kInt4Group < shape.inputs; ++group) {
        const uint8_t *pair = stream + group / 2 * kInt4Pair;
        const int multiple = pair[multiple_at(column, group)];
        const int times = multiple & kMostMultiple, zero = multiple & kZeroAtSeven ? 7 : 8;
        const uint8_t *lines = pair + kLine + group % 2 * kInt4Group / 4 * kLine;
        for_nibbles(shape, lines, kInt4Group / 4, column, group * kInt4Group,
                    [=](int64_t i, int q) { row[i] = scale * static_cast<float>(times * (q - zero)); });
    }
}

void unpack_grouped(const Shape &shape, const uint8_t *group, int64_t column, const Order &order, float *row) {
    const int64_t lines = shape.group_lines();
    for (int64_t first = 0; first < shape.inputs; first += shape.group, group += shape.group_bytes()) {
        const auto *tail = reinterpret_cast<const uint16_t *>(group + lines * kLine);
        const float scale = shape.half_scales() ? half_to_float(tail[column]) : bf16_to_float(tail[column]);
        const int zero = shape.zero_points ? reinterpret_cast<const int16_t *>(tail)[kPanel + column] : shape.middle();
        const bool coded = shape.coded();
        const auto put = [=](int64_t i, int q) {
            row[order.at(i)] = scale * static_cast<float>((coded ? kFp4Codes[q] : q) - zero);
        };
        if (shape.bits() == 4) for_nibbles(shape, group, lines, column, first, put);
        else
            for (int64_t i = first; i < std::min(first + shape.group, shape.inputs); ++i)
                put(i, bits_at(shape.bits(), group, column, i - first));
    }
}

float half_at(const uint8_t *line, int64_t column) {
    return half_to_float(reinterpret_cast<const uint16_t *>(line)[column]);
}

void unpack_q8_0(const Shape &shape, const uint8_t *stream, int64_t column, float *row) {
    for (int64_t first = 0; first < shape.inputs; first += 32, stream += 17 * kLine) {
        const float scale = half_at(stream + 16 * kLine, column);
        for (int64_t input = 0; input < 32; ++input)
            row[first + input] = scale * static_cast<float>(stream[place(column, input, 4)] - 128);
    }
}

void unpack_q4_k(const Shape &shape, const uint8_t *stream, int64_t column, float *row) {
    for (int64_t block = 0; block < shape.scale_groups(); ++block, stream += kQ4kLines * kLine)
        for (int64_t group = 0; group < 8; ++group) {
            const uint8_t *lines = stream + (2 + 9 * group) * kLine;
            const float scale = half_at(stream, column) * static_cast<float>(lines[2 * column]);
            const float offset = half_at(stream + kLine, column) * static_cast<float>(lines[2 * column + 1]);
            for_nibbles(shape, lines + kLine, 8, column, block * kLargeBlock + group * 32,
                        [=](int64_t i, int q) { row[i] = scale * static_cast<float>(q) - offset; });
        }
}

void unpack_q6_k(const Shape &shape, const uint8_t *stream, int64_t column, float *row) {
    for (int64_t block = 0; block < shape.scale_groups(); ++block, stream += kQ6kLines * kLine)
        for (int64_t group = 0; group < 8; ++group) {
            const uint8_t *lines = stream + (1 + 13 * group) * kLine;
            const int64_t first = block * kLargeBlock + group * 32;
            for_nibbles(shape, lines + kLine, 8, column, first, [=](int64_t i, int q) {
                const int64_t line = (i - first) / 4, at = line % 2 * 4 + (column < 16 ? 0 : 2);
                const int high = lines[(9 + line / 2) * kLine + column % 16 * 4 + i % 4] >> at & 3;
                const auto multiple = static_cast<int8_t>(lines[(i - first) / 16 * 32 + column]);
                row[i] = half_at(stream, column) * static_cast<float>(multiple) * static_cast<float>((q | high << 4) - 32);
            });
        }
}

} // namespace

void unpack_row(const Shape &shape, const uint8_t *packed, int64_t output, float *row) {
    const uint8_t *stream = packed + output / kPanel * shape.panel_bytes();
    const int64_t column = output % kPanel;
    switch (shape.format) {
    case Format::float32: for_dense<float>(shape, stream, column, [=](int64_t i, float value) { row[i] = value; }); break;
    case Format::bfloat16:
        for_dense<uint16_t>(shape, stream, column, [=](int64_t i, uint16_t value) { row[i] = bf16_to_float(value); });
        break;
    case Format::int8: {
        const float scale = reinterpret_cast<const float *>(stream + shape.steps() * 2 * kLine)[column];
        for_dense<uint8_t>(shape, stream, column, [=](int64_t i, uint8_t value) {
            row[i] = scale * static_cast<float>(value - 128);
        });
        break;
    }
    case Format::int4: unpack_int4(shape, stream, column, row); break;
    case Format::int4_float16:
    case Format::int4_bfloat16:
    case Format::int3_float16:
    case Format::int3_bfloat16:
    case Format::int2_float16:
    case Format::int2_bfloat16:
    case Format::mxfp4: unpack_grouped(shape, stream, column, shape.order(packed), row); break;
    case Format::q8_0: unpack_q8_0(shape, stream, column, row); break;
    case Format::q4_k: unpack_q4_k(shape, stream, column, row); break;
    case Format::q6_k: unpack_q6_k(shape, stream, column, row); break;
    }
}

} // namespace penstock
