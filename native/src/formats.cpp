#include "formats.hpp"

#include "half.hpp"
#include "pool.hpp"

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

void pack_int4(
    const Shape &shape, const uint8_t *weight, const uint16_t *scales, const uint16_t *offsets, uint8_t *packed) {
    const int64_t groups = shape.groups(), lines = shape.group / 4;
    for_panels(shape, packed, [&](int64_t first, int64_t count, uint8_t *stream) {
        for (int64_t group = 0; group < groups; ++group, stream += shape.group_bytes()) {
            const int64_t begin = group * shape.group;
            const int64_t end = begin + shape.group < shape.inputs ? begin + shape.group : shape.inputs;
            auto *tail = reinterpret_cast<uint16_t *>(stream + lines * kLine);
            for (int64_t column = 0; column < count; ++column) {
                const uint8_t *row = weight + (first + column) * shape.inputs;
                for (int64_t input = begin; input < end; ++input) {
                    const int64_t within = input - begin;
                    uint8_t &byte = stream[within / 4 * kLine + column % 16 * 4 + within % 4];
                    byte = static_cast<uint8_t>(byte | row[input] << (column < 16 ? 0 : 4));
                }
                tail[column] = scales[(first + column) * groups + group];
                if (shape.zero_points) tail[kPanel + column] = offsets[(first + column) * groups + group];
            }
        }
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

void unpack_int4(const Shape &shape, const uint8_t *group, int64_t column, float *row) {
    const int shift = column < 16 ? 0 : 4;
    const int64_t lines = shape.group / 4;
    for (int64_t input = 0; input < shape.inputs; group += shape.group_bytes()) {
        const auto *tail = reinterpret_cast<const uint16_t *>(group + lines * kLine);
        const float scale = half_to_float(tail[column]);
        const float offset = shape.zero_points ? half_to_float(tail[kPanel + column]) : 0.0f;
        const uint8_t *bytes = group + column % 16 * 4;
        for (int64_t line = 0; line < lines; ++line, bytes += kLine)
            for (int64_t i = 0; i < 4 && input < shape.inputs; ++i, ++input) {
                const int q = bytes[i] >> shift & 15;
                row[input] = shape.zero_points ? scale * static_cast<float>(q) - offset : scale * static_cast<float>(q - 8);
            }
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
    }
}

} // namespace penstock
