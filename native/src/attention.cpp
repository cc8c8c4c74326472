#include "attention.hpp"

#include "attention_block.hpp"
#include "attention_generic.hpp"
#include "attention_head.hpp"
#include "clones.hpp"
#include "exponential.hpp"
#include "memory.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

namespace penstock {

namespace {

constexpr int64_t kSegment = 512;
// Queries times query heads that share what is read of a KV head.
constexpr int64_t kTileRows = 32;
// Fewer tasks than this for each thread are cut further, by segments of positions.
constexpr int64_t kTasksPerThread = 2;
constexpr float kNone = -std::numeric_limits<float>::infinity();

PENSTOCK_CLONES void merge(const State &segment, int64_t size, State &into) {
    const float most = segment.most > into.most ? segment.most : into.most;
    const float old = exponential(into.most - most), fresh = exponential(segment.most - most);
    into.total = into.total * old + segment.total * fresh;
    for (int64_t i = 0; i < size; ++i) into.mixed[i] = into.mixed[i] * old + segment.mixed[i] * fresh;
    into.most = most;
}

// What queries have mixed, times a factor each: `group` of them side by side in a row of the output.
PENSTOCK_CLONES void write_rows(const State *states, const float *factors, int64_t rows, int64_t size, int64_t group, float *output,
                                int64_t stride) {
    for (int64_t i = 0; i < rows; ++i) {
        float *into = output + i / group * stride + i % group * size;
        const float *mixed = states[i].mixed, factor = factors[i];
        for (int64_t j = 0; j < size; ++j) into[j] = mixed[j] * factor;
    }
}

// What all tasks of a step share.
struct Call {
    const Attention &attention;
    const Batch &batch;
    const Tables &tables;
    const Rows &qkv;
    const Cache &cache;
    const MutableRows &output;
};

// Queries [first, last) of a sequence, and one KV head; `row` is that of the sequence's first query in the step.
struct Piece {
    int64_t sequence, first, last, row, head;
};

thread_local Memory t_queries;
thread_local Memory t_expanded;
thread_local Memory t_notes;
thread_local Memory t_factors;
thread_local Memory t_bias;

// `count` running softmaxes that have seen nothing, over `count` · `size` floats.
void begin(State *states, float *mixed, int64_t count, int64_t size) {
    std::memset(mixed, 0, static_cast<size_t>(count * size) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) states[i] = {kNone, 0.0f, mixed + i * size};
}

// The queries of a piece and the query heads that share its KV head: `rows` rows.
class QueryTile {
public:
    // While its last span is multiplied, the first of the piece that follows is asked for; null: none does.
    QueryTile(const Call &call, const Piece &piece, const Piece *following = nullptr)
        : call_(call), piece_(piece), following_(following), size_(call.attention.heads.size),
          group_(call.attention.heads.query / call.attention.heads.key),
          start_(call.batch.context[piece.sequence] - call.batch.added[piece.sequence] - call.tables.dropped_of(piece.sequence)),
          rows_(rows_of(call, piece)), block_size_(call.attention.stripe.own_size(call.batch.block_size)) {}

    static int64_t rows_of(const Call &call, const Piece &piece) {
        return (piece.last - piece.first) * (call.attention.heads.query / call.attention.heads.key);
    }

    // Whether there is anything that its queries see.
    bool sees() const { return lowest(piece_.first) < until(); }

    int64_t first_segment() const { return lowest(piece_.first) / kSegment; }
    int64_t end_segment() const { return (until() + kSegment - 1) / kSegment; }

    // Whether it is asked how much attention its queries give; then what is noted of a span, and where a segment's spans begin.
    bool is_weighed() const { return piece_.last > first_weighed(); }
    int64_t note_size() const { return rows_ * (kSpanTiles + 1); }
    int64_t first_span(int64_t segment) const { return first_place(segment) / kSpan; }
    int64_t spans() const { return (until() + kSpan - 1) / kSpan - first_span(first_segment()); }

    // Floats that `read_queries` needs: kernels read 16 rows at once, of which some may be none.
    int64_t query_memory() const { return 2 * std::max<int64_t>(rows_, 16) * size_; }

    // Reads the queries; `memory` is for `query_memory` floats.
    void read_queries(float *memory) {
        const int64_t queries = piece_.last - piece_.first, width = group_ * size_;
        const float *from = call_.qkv.row(piece_.row + piece_.first) + piece_.head * width;
        float *rounded = memory + rows_ * size_;
        queries_ = memory;
        if (call_.cache.type == Type::bfloat16 && !call_.cache.integers()) {
            // Only kernels for all processors read both.
            if (!kernels().attend_block) copy_rows(from, call_.qkv.stride, queries, width, memory);
            narrow_rows(from, call_.qkv.stride, queries, width, reinterpret_cast<uint16_t *>(rounded));
            units_ = reinterpret_cast<const uint32_t *>(rounded);
            return;
        }
        copy_rows(from, call_.qkv.stride, queries, width, memory);
        if (call_.cache.integers()) {
            auto *integers = reinterpret_cast<int16_t *>(rounded);
            float *scales = rounded + rows_ * size_ / 2;
            for (int64_t row = 0; row < rows_; ++row)
                scales[row] = round_query(memory + row * size_, size_, most_of_query(size_), integers + row * size_);
            units_ = reinterpret_cast<const uint32_t *>(integers);
            query_scales_ = scales;
            return;
        }
        units_ = reinterpret_cast<const uint32_t *>(memory);
    }

    // Where it is weighed, `notes` has room for each span of the segment.
    void attend_segment(int64_t segment, State *states, float *notes) const {
        const int64_t from = first_place(segment);
        const int64_t end = std::min((segment + 1) * kSegment, until());
        if (call_.cache.latent() || (call_.cache.kept != Kept::plain && !call_.cache.integers())) {
            uint8_t *memory = t_expanded.take(2 * kSpanTiles * call_.cache.multiplied_bytes());
            for (int64_t at = from; at < end; at += kSpan) {
                const Tiles tiles = expanded_at(at, memory);
                attend_span(at, tiles, asked_for(at + kSpan, tiles), states, notes);
                if (notes) notes += note_size();
            }
            return;
        }
        Tiles tiles = tiles_at(from);
        for (int64_t at = from; at < end; at += kSpan) {
            const Tiles next = at + kSpan < until() ? tiles_at(at + kSpan) : following_ ? first_of_following() : tiles;
            attend_span(at, tiles, next, states, notes);
            if (notes) notes += note_size();
            tiles = next;
        }
    }

    void write(State *states) const {
        if (call_.attention.stripe.ranks > 1) return write_states(states);
        float *factors = reinterpret_cast<float *>(t_factors.take(rows_ * static_cast<int64_t>(sizeof(float))));
        for (int64_t i = 0; i < rows_; ++i) factors[i] = part_of_whole(states[i], piece_.head * group_ + i % group_);
        float *output = call_.output.row(piece_.row + piece_.first) + piece_.head * group_ * size_;
        write_rows(states, factors, rows_, size_, group_, output, call_.output.stride);
    }

    // Adds to `masses` what the queries that are asked give to each block, by what was noted of `spans` spans from `span` on and
    // what their softmaxes came to.
    void add_masses(const float *notes, int64_t span, int64_t spans, const State *totals, float *masses) const {
        const int64_t asked = std::max<int64_t>(0, first_weighed() - piece_.first) * group_;
        for (int64_t end = span + spans; span < end; ++span, notes += note_size())
            for (int64_t row = asked; row < rows_; ++row) {
                const float part = part_of_whole(totals[row], piece_.head * group_ + row % group_);
                const float factor = part * exponential(notes[rows_ * kSpanTiles + row] - totals[row].most);
                for (int64_t tile = 0; tile < kSpanTiles && span * kSpan + tile * kStep < until(); ++tile)
                    masses[(span * kSpan + tile * kStep) / block_size_] += notes[row * kSpanTiles + tile] * factor;
            }
    }

    int64_t rows() const { return rows_; }

private:
    // The states as they are.
    void write_states(const State *states) const {
        const int64_t heads = call_.attention.heads.query;
        for (int64_t i = 0; i < rows_; ++i) {
            float *row = call_.output.row(piece_.row + piece_.first + i / group_);
            const int64_t head = piece_.head * group_ + i % group_;
            std::memcpy(row + head * size_, states[i].mixed, static_cast<size_t>(size_) * sizeof(float));
            row[heads * size_ + head] = states[i].most;
            row[heads * (size_ + 1) + head] = states[i].total;
        }
    }

    // The first of a sequence's queries whose attention is weighed.
    int64_t first_weighed() const { return call_.batch.added[piece_.sequence] - call_.tables.weighed_of(piece_.sequence); }

    int64_t first_place(int64_t segment) const { return std::max(segment * kSegment, lowest(piece_.first) / kSpan * kSpan); }

    // What a mix of values is multiplied by in the end.
    float part_of_whole(const State &state, int64_t head) const {
        if (!call_.attention.sinks) return 1.0f / state.total;
        const float sink = call_.attention.sinks[head], most = state.most > sink ? state.most : sink;
        const float kept = exponential(state.most - most);
        return kept / (state.total * kept + exponential(sink - most));
    }

    int64_t until() const { return end(piece_.last - 1); }

    // The places that a query sees, in this cache: from `lowest` on, before `end`.
    int64_t lowest(int64_t query) const {
        return own_before(first_seen(start_ + query, call_.attention.window, highest(query)));
    }
    int64_t end(int64_t query) const { return own_before(highest(query) + 1); }
    int64_t own_before(int64_t place) const { return call_.attention.stripe.before(place, call_.batch.block_size); }

    // The last place that a query sees of its context.
    int64_t highest(int64_t query) const {
        const int64_t own = start_ + query;
        if (!call_.attention.mutual) return own;
        const int64_t *const seen = call_.batch.seen ? call_.batch.seen : call_.batch.added;
        return last_seen(own, call_.attention.window, start_ + seen[piece_.sequence]);
    }

    int64_t first_tile(int64_t at) const { return std::max<int64_t>(0, lowest(piece_.first) - at) / kStep; }
    int64_t last_tile(int64_t at) const { return (std::min(kSpan, until() - at) + kStep - 1) / kStep; }

    // Tiles before the window may be another sequence's by now, and those behind the context are nobody's.
    Tiles tiles_at(int64_t at) const {
        Tiles tiles{};
        const int64_t low = first_tile(at), last = last_tile(at) - 1;
        for (int64_t i = 0; i < kSpanTiles; ++i) {
            const int64_t position = at + std::min(std::max(i, low), last) * kStep;
            const CacheTile tile = call_.tables.tile(piece_.sequence, position, block_size_);
            const int64_t place = call_.cache.place(tile, piece_.head);
            tiles.keys[i] = call_.cache.keys + place;
            tiles.values[i] = call_.cache.latent() ? nullptr : call_.cache.values + place;
            if (!call_.cache.integers()) continue;
            const int64_t scales = call_.cache.scales_at(tile, piece_.head);
            tiles.key_scales[i] = reinterpret_cast<const float *>(call_.cache.key_scales + scales);
            tiles.value_scales[i] = call_.cache.latent() ? tiles.key_scales[i]
                                                         : reinterpret_cast<const float *>(call_.cache.value_scales + scales);
        }
        return tiles;
    }

    Tiles first_of_following() const {
        const QueryTile tile(call_, *following_);
        return tile.tiles_at(tile.first_place(tile.first_segment()));
    }

    // The same where keys are values, too: in the order of values in `memory`.
    Tiles turned_at(int64_t at, uint8_t *memory) const {
        Tiles tiles = tiles_at(at);
        const int64_t low = first_tile(at), last = last_tile(at) - 1, bytes = call_.cache.head_bytes();
        for (int64_t i = low; i <= last; ++i) keys_as_values(call_.cache, tiles.keys[i], memory + i * bytes);
        for (int64_t i = 0; i < kSpanTiles; ++i) tiles.values[i] = memory + std::min(std::max(i, low), last) * bytes;
        return tiles;
    }

    // The same of what is not multiplied as it is kept, expanded into `memory`.
    Tiles expanded_at(int64_t at, uint8_t *memory) const {
        if (call_.cache.latent()) return turned_at(at, memory);
        Tiles tiles{};
        const int64_t low = first_tile(at), last = last_tile(at) - 1, bytes = call_.cache.multiplied_bytes();
        for (int64_t i = low; i <= last; ++i) {
            const CacheTile tile = call_.tables.tile(piece_.sequence, at + i * kStep, block_size_);
            expand(call_.cache, tile, piece_.head, memory + 2 * i * bytes, memory + (2 * i + 1) * bytes);
        }
        for (int64_t i = 0; i < kSpanTiles; ++i) {
            const int64_t there = std::min(std::max(i, low), last);
            tiles.keys[i] = memory + 2 * there * bytes;
            tiles.values[i] = memory + (2 * there + 1) * bytes;
        }
        return tiles;
    }

    // What is asked for while `tiles`, which were expanded, are multiplied: latent keys from `at` on, which are read next.
    Tiles asked_for(int64_t at, const Tiles &tiles) const {
        if (!call_.cache.latent() || at >= until()) return tiles;
        Tiles next = tiles_at(at);
        std::copy(std::begin(tiles.values), std::end(tiles.values), next.values);
        return next;
    }

    // What the scores of a span get, [rows, kSpan].
    const float *bias_at(int64_t at) const {
        const int64_t reach = call_.attention.reach;
        auto *memory = reinterpret_cast<float *>(t_bias.take(rows_ * kSpan * static_cast<int64_t>(sizeof(float))));
        for (int64_t row = 0; row < rows_; ++row) {
            const int64_t head = piece_.head * group_ + row % group_, query = start_ + piece_.first + row / group_;
            const float *table = call_.attention.bias + head * (2 * reach + 1) + reach;
            for (int64_t t = 0; t < kSpan; ++t) {
                const int64_t distance = call_.attention.stripe.place_of(at + t, call_.batch.block_size) - query;
                memory[row * kSpan + t] = table[std::min(std::max(distance, -reach), reach)];
            }
        }
        return memory;
    }

    void attend_span(int64_t at, const Tiles &tiles, const Tiles &next, State *states, float *note) const {
        int64_t lows[kTileRows], highs[kTileRows];
        for (int64_t query = piece_.first; query < piece_.last; ++query) {
            lows[query - piece_.first] = std::max<int64_t>(0, lowest(query) - at);
            highs[query - piece_.first] = std::min(kSpan, end(query) - at);
        }
        const Block block{queries_, units_, rows_, size_, call_.cache.type, query_scales_, lows, highs, group_, tiles, next,
                          first_tile(at), last_tile(at), call_.attention.scale, call_.attention.softcap, states, note,
                          call_.attention.bias ? bias_at(at) : nullptr};
        if (note) std::memset(note, 0, static_cast<size_t>(rows_ * kSpanTiles) * sizeof(float));
        const auto vectors = kernels().attend_block;
        (vectors ? vectors : attend_block)(block);
        for (int64_t row = 0; note && row < rows_; ++row) note[rows_ * kSpanTiles + row] = states[row].most;
    }

    const Call &call_;
    const Piece &piece_;
    const Piece *following_;
    int64_t size_, group_, start_, rows_, block_size_;
    const float *queries_ = nullptr, *query_scales_ = nullptr;
    const uint32_t *units_ = nullptr;
};

thread_local Memory t_mixed;
thread_local Memory t_states;

template <typename Value> Value *take(Memory &memory, int64_t count) {
    return reinterpret_cast<Value *>(memory.take(count * static_cast<int64_t>(sizeof(Value))));
}

void merge_all(const State *segment, int64_t rows, int64_t size, State *totals) {
    for (int64_t i = 0; i < rows; ++i)
        if (segment[i].total != 0.0f) merge(segment[i], size, totals[i]);
}

// `masses` has room for each block of the sequence, where the piece is weighed. The same thread takes the `following` piece.
void attend_piece(const Call &call, const Piece &piece, const Piece *following, float *masses) {
    QueryTile tile(call, piece, following);
    const int64_t rows = tile.rows(), size = call.attention.heads.size;
    float *mixed = take<float>(t_mixed, 2 * rows * size);
    State *totals = take<State>(t_states, 2 * rows), *segment_states = totals + rows;
    tile.read_queries(take<float>(t_queries, tile.query_memory()));
    begin(totals, mixed, rows, size);
    const int64_t first = tile.first_span(tile.first_segment());
    float *notes = masses ? take<float>(t_notes, tile.spans() * tile.note_size()) : nullptr;
    const auto notes_of = [&](int64_t segment) {
        return notes ? notes + (tile.first_span(segment) - first) * tile.note_size() : nullptr;
    };
    // Merging into nothing would change nothing, so the first segment adds up in place.
    tile.attend_segment(tile.first_segment(), totals, notes);
    for (int64_t segment = tile.first_segment() + 1; segment < tile.end_segment(); ++segment) {
        begin(segment_states, mixed + rows * size, rows, size);
        tile.attend_segment(segment, segment_states, notes_of(segment));
        merge_all(segment_states, rows, size, totals);
    }
    if (masses) tile.add_masses(notes, first, tile.spans(), totals, masses);
    tile.write(totals);
}

// The same with a task for each segment, for few pieces of long contexts.
void attend_in_segments(const Call &call, const std::vector<Piece> &pieces, const std::vector<float *> &masses) {
    constexpr int64_t spans = kSegment / kSpan;
    struct Part {
        const Piece *piece;
        int64_t segment, first_row, first_note;
    };
    const int64_t size = call.attention.heads.size;
    std::vector<Part> parts;
    std::vector<size_t> firsts;
    int64_t rows = 0, noted = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const QueryTile tile(call, pieces[i]);
        firsts.push_back(parts.size());
        for (int64_t segment = tile.first_segment(); segment < tile.end_segment(); ++segment, rows += tile.rows()) {
            parts.push_back({&pieces[i], segment, rows, masses[i] ? noted : -1});
            if (masses[i]) noted += spans * tile.note_size();
        }
    }
    firsts.push_back(parts.size());
    std::vector<float> notes(static_cast<size_t>(noted));
    const auto notes_of = [&](const Part &part) { return part.first_note < 0 ? nullptr : notes.data() + part.first_note; };
    std::vector<float> mixed(static_cast<size_t>(rows * size));
    std::vector<State> states(static_cast<size_t>(rows));
    pool()->run(static_cast<int64_t>(parts.size()), [&](int64_t task) {
        const Part &part = parts[static_cast<size_t>(task)];
        QueryTile tile(call, *part.piece);
        tile.read_queries(take<float>(t_queries, tile.query_memory()));
        State *own = states.data() + part.first_row;
        begin(own, mixed.data() + part.first_row * size, tile.rows(), size);
        tile.attend_segment(part.segment, own, notes_of(part));
    });
    pool()->run(static_cast<int64_t>(pieces.size()), [&](int64_t task) {
        const QueryTile tile(call, pieces[static_cast<size_t>(task)]);
        const size_t first = firsts[static_cast<size_t>(task)], end = firsts[static_cast<size_t>(task) + 1];
        State *totals = states.data() + parts[first].first_row;
        for (size_t part = first + 1; part < end; ++part)
            merge_all(states.data() + parts[part].first_row, tile.rows(), size, totals);
        float *of_blocks = masses[static_cast<size_t>(task)];
        for (size_t part = first; of_blocks && part < end; ++part) {
            const int64_t begins = tile.first_span(parts[part].segment);
            const int64_t until = std::min((parts[part].segment + 1) * spans, tile.first_span(tile.first_segment()) + tile.spans());
            tile.add_masses(notes_of(parts[part]), begins, until - begins, totals, of_blocks);
        }
        tile.write(totals);
    });
}

// States of queries that see nothing.
void write_nothing(const Heads &heads, int64_t rows, const MutableRows &output) {
    for (int64_t row = 0; row < rows; ++row) {
        float *const most = std::fill_n(output.row(row), heads.query * heads.size, 0.0f);
        std::fill_n(std::fill_n(most, heads.query, kNone), heads.query, 0.0f);
    }
}

// All pieces whose queries see anything, those of the longest contexts first: what comes last should be short, so that threads end together.
std::vector<Piece> cut(const Call &call) {
    const Heads &heads = call.attention.heads;
    const Batch &batch = call.batch;
    struct Sequence {
        int64_t index, row;
    };
    std::vector<Sequence> order;
    for (int64_t index = 0, row = 0; index < batch.sequences; row += batch.added[index++]) order.push_back({index, row});
    const auto places = [&](const Sequence &one) { return batch.context[one.index] - call.tables.dropped_of(one.index); };
    std::stable_sort(order.begin(), order.end(),
                     [&](const Sequence &left, const Sequence &right) { return places(left) > places(right); });
    const int64_t most = std::max<int64_t>(1, kTileRows / (heads.query / heads.key));
    std::vector<Piece> pieces;
    for (const Sequence &sequence : order) {
        const int64_t added = batch.added[sequence.index];
        for (int64_t first = (added - 1) / most * most; first >= 0; first -= most)
            for (int64_t head = 0; head < heads.key; ++head) {
                const Piece piece{sequence.index, first, std::min(first + most, added), sequence.row, head};
                if (QueryTile(call, piece).sees()) pieces.push_back(piece);
            }
    }
    return pieces;
}

// What pieces give to blocks is added up in their order, whatever threads take them.
class Masses {
public:
    Masses(const Call &call, const std::vector<Piece> &pieces) : call_(call), pieces_(pieces), of_pieces_(pieces.size(), nullptr) {
        if (!call.tables.weighing.weighed) return;
        const int64_t blocks = call.tables.weighing.stride;
        std::vector<size_t> asked;
        for (size_t i = 0; i < pieces.size(); ++i)
            if (QueryTile(call, pieces[i]).is_weighed()) asked.push_back(i);
        memory_.resize(asked.size() * static_cast<size_t>(blocks));
        for (size_t i = 0; i < asked.size(); ++i) of_pieces_[asked[i]] = memory_.data() + static_cast<int64_t>(i) * blocks;
    }

    const std::vector<float *> &of_pieces() const { return of_pieces_; }

    void add() const {
        const Weighing &weighing = call_.tables.weighing;
        for (size_t i = 0; i < pieces_.size(); ++i)
            for (int64_t block = 0; of_pieces_[i] && block < weighing.stride; ++block)
                weighing.masses[pieces_[i].sequence * weighing.stride + block] += of_pieces_[i][block];
    }

private:
    const Call &call_;
    const std::vector<Piece> &pieces_;
    std::vector<float *> of_pieces_;
    std::vector<float> memory_;
};

} // namespace

void attend(const Attention &attention, const Batch &batch, const Tables &tables, const Rows &qkv, const Cache &cache,
            const MutableRows &output) {
    const Call call{attention, batch, tables, qkv, cache, output};
    if (attention.stripe.ranks > 1) write_nothing(attention.heads, batch.tokens, output);
    const std::vector<Piece> pieces = cut(call);
    const Masses masses(call, pieces);
    const auto threads = pool();
    const auto tasks = static_cast<int64_t>(pieces.size());
    const auto is_cut = [&](const Piece &piece) {
        const QueryTile tile(call, piece);
        return tile.end_segment() - tile.first_segment() > 1;
    };
    if (threads->threads() > 1 && tasks < kTasksPerThread * threads->threads() &&
        std::any_of(pieces.begin(), pieces.end(), is_cut))
        attend_in_segments(call, pieces, masses.of_pieces());
    else
        threads->run(tasks, [&](int64_t task) {
            const auto i = static_cast<size_t>(task);
            attend_piece(call, pieces[i], i + 1 < pieces.size() ? &pieces[i + 1] : nullptr, masses.of_pieces()[i]);
        });
    masses.add();
}

void merge_stripes(const Heads &heads, int64_t ranks, const float *sinks, const Rows &parts, int64_t rows, const MutableRows &output) {
    const int64_t size = heads.size, width = heads.query * size, made = width + 2 * heads.query;
    pool()->run(rows, [&](int64_t row) {
        for (int64_t head = 0; head < heads.query; ++head) {
            float *into = output.row(row) + head * size;
            std::fill_n(into, size, 0.0f);
            State whole{sinks ? sinks[head] : kNone, sinks ? 1.0f : 0.0f, into};
            for (int64_t rank = 0; rank < ranks; ++rank) {
                // A row is only read; states are of what is written, too.
                float *part = const_cast<float *>(parts.row(row)) + rank * made;
                const State state{part[width + head], part[width + heads.query + head], part + head * size};
                if (state.total != 0.0f) merge(state, size, whole);
            }
            multiply_values(1.0f / whole.total, into, size);
        }
    });
}

} // namespace penstock
