// kernels.cu: the kernels of a GPU table, compiled at first use for the processor that is there.
//
// Index: partitions of 16 to 32 pages; a page has 2,048 buckets; a bucket is one line of 64 bytes with 8 keys, and each slot
// has the number of its row. One partition after the other gets a page more, and from 32 pages it splits (linear hashing
// with partial expansions), so the table grows a little in each step and never stops to rehash.
// Rows are in slabs that never move: values, then state words, then state per row. Beside a slab are the marks of its rows,
// where the table has them: a stamp of the last update's time, and a bit for rows that changed since the last drain.
//
// A step: insert (find or add every id, 8 lanes per id), place (number the distinct slots), sum (gradients per distinct
// slot), update (one optimizer step per distinct slot). Lookups use find and pool.
//
// Compiled with DIM, DIM4 and PADDED (columns, in fours, rounded up), STRIDE (words of a row), LANES, SLICES, EACH_SLICE,
// MOST_STATES, HAS_PASSES and CHECK_FINITE, behind common.cuh and the namespace of each slice (rules.cuh, slices.cuh). No
// fused multiply-add, so that results equal those of the host wherever sums have one order.

#define EMPTY 0x8000000000000000ull
#define NONE 0xffffffffu
#define BUCKETS 2048u
#define SLOTS 16384u
#define MOST_PAGES 32u
#define SPLIT_PAGES 17u
#define SPECIAL 0xfffffffeu  // slot of the id whose bits are EMPTY
#define SKIPPED 0xfffffffdu  // slot and row of an id that counts nowhere
#define PENDING 0xfffffffcu  // row of a key that is getting one

struct Index {
  u64** keys;    // per partition MOST_PAGES pages of SLOTS keys; null where a partition has fewer
  u32** rows;    // the same for row numbers
  u32 level;     // 2^level partitions before the splits of this sweep
  u32 pages;     // of a partition that this sweep has not reached
  u32 reached;   // partitions that this sweep has grown or split
  u32 places;    // page pointers in use
};

struct Slabs {
  float** slabs;
  u16** stamps;   // per slab the stamps of its rows; null where the table has no times
  u32** touched;  // per slab a bit per row; null before the first drain
  u32 shift;      // rows of a slab = 2^shift
};

// Device counters, one struct per table.
struct Counters {
  u32 rows;       // row numbers in use
  u32 special;    // row of the id EMPTY, or NONE
  u32 lost;       // ids that found no slot: the table was not grown enough
  u32 distinct;   // ids of the step
  u32 dead;       // row numbers that no key has: a key whose first gradient is not finite keeps its slot, with row NONE
  u32 first_new;  // first row number of the step
  u32 skipped;    // gradients that were not finite
  u32 unused;
};

// Starts a step with a copy of the slots of its ids, which insert_keys changes.
extern "C" __global__ void begin_step(Counters* counters, const u32* slots, u32 count, u32* copy) {
  const u32 which = blockIdx.x * blockDim.x + threadIdx.x;
  if (which < count) copy[which] = slots[which];
  if (which == 0) {
    counters->distinct = 0;
    counters->first_new = counters->rows;
  }
}

__device__ __forceinline__ u64 mix(u64 x) {
  x ^= 0x2d358dccaa6c78a5ull;
  const u64 low = x * 0x9e3779b97f4a7c15ull;
  return low ^ __umul64hi(x, 0x9e3779b97f4a7c15ull);
}

// The pages of a key's partition, and how many buckets they have.
struct Home {
  u32 first;  // page
  u32 buckets;
};

__device__ __forceinline__ Home home_of(const Index& index, u64 hash) {
  const u32 bits = (u32)(hash >> 32);
  u32 part = bits & ((1u << index.level) - 1u);
  u32 pages = index.pages;
  if (part < index.reached) {
    if (pages == MOST_PAGES) {
      part = bits & ((2u << index.level) - 1u);
      pages = SPLIT_PAGES;
    } else {
      ++pages;
    }
  }
  return {part * MOST_PAGES, pages * BUCKETS};
}

__device__ __forceinline__ u32 bucket_of(u64 hash, u32 buckets) { return __umulhi((u32)hash, buckets); }

__device__ __forceinline__ float* row_at(const Slabs slabs, u32 row) {
  return slabs.slabs[row >> slabs.shift] + (u64)(row & ((1u << slabs.shift) - 1u)) * STRIDE;
}

// Marks a row as changed.
__device__ __forceinline__ void touch(const Slabs& slabs, u32 row) {
  if (!slabs.touched) return;
  const u32 at = row & ((1u << slabs.shift) - 1u);
  u32* word = slabs.touched[row >> slabs.shift] + at / 32;
  const u32 bit = 1u << (at % 32);
  if (!(*(volatile u32*)word & bit)) atomicOr(word, bit);
}

__device__ __forceinline__ bool is_touched(const Slabs& slabs, u32 row) {
  const u32 at = row & ((1u << slabs.shift) - 1u);
  return slabs.touched[row >> slabs.shift][at / 32] >> (at % 32) & 1u;
}

__device__ __forceinline__ u16& stamp_of(const Slabs& slabs, u32 row) {
  return slabs.stamps[row >> slabs.shift][row & ((1u << slabs.shift) - 1u)];
}

// Later times have larger stamps, so a late update does not make a row older.
__device__ __forceinline__ void mark(const Slabs& slabs, u32 row, u32 stamp) {
  if (slabs.stamps && stamp_of(slabs, row) < stamp) stamp_of(slabs, row) = (u16)stamp;
  touch(slabs, row);
}

// The slice of a column. Columns behind the last slice fill the row up to a multiple of four.
__device__ __forceinline__ float first_value(u64 key_hash, u32 column, const First& first) {
#define FIRST_OF(slice) \
  if (slice::kIsLast || column < slice::kEnd) return slice::first_value(key_hash, column, first);
  EACH_SLICE(FIRST_OF)
#undef FIRST_OF
  return 0.0f;
}

__device__ __forceinline__ float first_state(u32 word, u32 column) {
#define STATE_OF(slice) \
  if (slice::kIsLast || column < slice::kEnd) return word < slice::kStates ? slice::first_state(word) : 0.0f;
  EACH_SLICE(STATE_OF)
#undef STATE_OF
  return 0.0f;
}

// Eight lanes look for one key from a bucket on. Returns its slot, page * SLOTS + place, or NONE; then `empty` is the first
// free slot, or NONE in a full partition.
__device__ __forceinline__ u32 probe(const Index& index, Home home, u64 key, u32 bucket, u32 lane, u32 mask, u32 shift,
                                     u32* empty) {
  *empty = NONE;
  for (u32 step = 0; step < home.buckets; ++step) {
    const u32 page = home.first + bucket / BUCKETS;
    const u32 base = page * SLOTS + bucket % BUCKETS * 8;
    const u64 there = *(volatile const u64*)(index.keys[page] + (bucket % BUCKETS * 8 + lane));
    const u32 equal = (__ballot_sync(mask, there == key) >> shift) & 0xffu;
    if (equal) return base + (u32)(__ffs((int)equal) - 1);
    const u32 free = (__ballot_sync(mask, there == EMPTY) >> shift) & 0xffu;
    if (free) {
      *empty = base + (u32)(__ffs((int)free) - 1);
      return NONE;
    }
    if (++bucket == home.buckets) bucket = 0;
  }
  return NONE;
}

__device__ __forceinline__ u32& row_number(const Index& index, u32 slot) { return index.rows[slot / SLOTS][slot % SLOTS]; }

// One table of a kernel over several tables of equal rows. Blocks follow each other from table to table.
struct Call {
  Index index;
  Slabs slabs;
  Counters* counters;
  const i64* ids;  // distinct
  u32* slots;
  float* values;  // read: rows; update: gradients, each padded to a multiple of four
  u64 seed;
  u32 count;
  u32 stamp;
  u32 first_block;   // of find_all and insert_all
  u32 first_update;  // of update_all
  u32 updates;       // blocks of update_all
  int miss_is_initial;
  First first_values;
  Rates rates;
};

__device__ __forceinline__ const Call& call_of(const Call* calls, u32 count, bool is_update) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if ((is_update ? calls[middle].first_update : calls[middle].first_block) <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return calls[low];
}

#define GROUP_OF_8(block)                                      \
  const u32 thread = (block) * blockDim.x + threadIdx.x;       \
  const u32 lane = threadIdx.x & 7u;                           \
  const u32 shift = threadIdx.x & 24u;                         \
  const u32 mask = 0xffu << shift;

// Eight lanes look for two keys: the first buckets of both are read before either is compared, which hides latency.
__device__ __forceinline__ void probe_pair(const Index& index, const u64* keys, u32 lane, u32 mask, u32 shift, u32* slots) {
  Home home[2];
  u32 bucket[2];
  u64 there[2];
#pragma unroll
  for (u32 k = 0; k < 2; ++k) {
    const u64 hash = mix(keys[k]);
    home[k] = home_of(index, hash);
    bucket[k] = bucket_of(hash, home[k].buckets);
    there[k] = __ldcg(index.keys[home[k].first + bucket[k] / BUCKETS] + (bucket[k] % BUCKETS * 8 + lane));
  }
#pragma unroll
  for (u32 k = 0; k < 2; ++k) {
    const u32 equal = (__ballot_sync(mask, there[k] == keys[k]) >> shift) & 0xffu;
    const u32 free = (__ballot_sync(mask, there[k] == EMPTY) >> shift) & 0xffu;
    slots[k] = NONE;
    if (equal) {
      slots[k] = (home[k].first + bucket[k] / BUCKETS) * SLOTS + bucket[k] % BUCKETS * 8 + (u32)(__ffs((int)equal) - 1);
    } else if (!free) {
      if (++bucket[k] == home[k].buckets) bucket[k] = 0;
      u32 empty;
      slots[k] = probe(index, home[k], keys[k], bucket[k], lane, mask, shift, &empty);
    }
  }
}

// Row number and slot of every id, NONE where it has no row. Eight lanes take two ids.
extern "C" __global__ void find_rows(Index index, const Counters* counters, const i64* ids, u32 count, u32* out, u32* slots) {
  GROUP_OF_8(blockIdx.x)
  const u32 first = (thread >> 3) * 2;
  if (first >= count) return;
  const bool has_second = first + 1 < count;
  const u64 keys[2] = {(u64)ids[first], (u64)ids[first + has_second]};
  u32 found[2];
  probe_pair(index, keys, lane, mask, shift, found);
  if (lane >= 2 || (lane == 1 && !has_second)) return;
  const u32 slot = lane == 0 ? found[0] : found[1];
  if ((lane == 0 ? keys[0] : keys[1]) == EMPTY) {
    out[first + lane] = counters->special;
    slots[first + lane] = counters->special == NONE ? NONE : SPECIAL;
  } else {
    const u32 row = slot == NONE ? NONE : row_number(index, slot);
    out[first + lane] = row;
    slots[first + lane] = row == NONE ? NONE : slot;
  }
}

__device__ __forceinline__ void copy_values(const float* values, float* target, u32 lane) {
#if DIM % 4 == 0
  for (u32 column = lane; column < DIM4; column += 8) __stcs((float4*)target + column, __ldcg((const float4*)values + column));
#else
  for (u32 column = lane; column < DIM; column += 8) target[column] = __ldcg(values + column);
#endif
}

// Values of every id, 8 lanes for two ids: find and copy in one kernel. Absent ids give their first values or zeros. With
// `slots_out`, the slots of find_rows go there too.
__device__ __forceinline__ void find_block(u32 block, const Index& index, const Slabs& slabs, const Counters* counters,
                                           const i64* ids, u32 count, int miss_is_initial, const First& first_values,
                                           float* out, u32* slots_out) {
  GROUP_OF_8(block)
  const u32 first = (thread >> 3) * 2;
  if (first >= count) return;
  const bool has_second = first + 1 < count;
  const u64 keys[2] = {(u64)ids[first], (u64)ids[first + has_second]};
  u32 slots[2];
  u32 rows[2];
  probe_pair(index, keys, lane, mask, shift, slots);
#pragma unroll
  for (u32 k = 0; k < 2; ++k) {  // one address per id: the lanes share the access
    rows[k] = keys[k] == EMPTY ? counters->special : slots[k] == NONE ? NONE : row_number(index, slots[k]);
    if (slots_out && lane == k && (k == 0 || has_second)) {
      slots_out[first + k] = rows[k] == NONE ? NONE : keys[k] == EMPTY ? SPECIAL : slots[k];
    }
  }
#if DIM % 4 == 0 && DIM4 <= 8
  if (has_second && rows[0] != NONE && rows[1] != NONE) {
    if (lane < DIM4) {
      const float4 one = __ldcg((const float4*)row_at(slabs, rows[0]) + lane);
      const float4 other = __ldcg((const float4*)row_at(slabs, rows[1]) + lane);
      __stcs((float4*)(out + (u64)first * DIM) + lane, one);
      __stcs((float4*)(out + (u64)(first + 1) * DIM) + lane, other);
    }
    return;
  }
#endif
  for (u32 k = 0; k < 1 + has_second; ++k) {
    float* target = out + (u64)(first + k) * DIM;
    if (rows[k] != NONE) {
      copy_values(row_at(slabs, rows[k]), target, lane);
      continue;
    }
    const u64 key_hash = scramble(keys[k]);
    for (u32 column = lane; column < DIM; column += 8) {
      target[column] = miss_is_initial ? first_value(key_hash, column, first_values) : 0.0f;
    }
  }
}

extern "C" __global__ void find_values(Index index, Slabs slabs, const Counters* counters, const i64* ids, u32 count,
                                       int miss_is_initial, First first_values, float* out) {
  find_block(blockIdx.x, index, slabs, counters, ids, count, miss_is_initial, first_values, out, nullptr);
}

extern "C" __global__ void find_all(const Call* calls, u32 count) {
  const Call& call = call_of(calls, count, false);
  find_block(blockIdx.x - call.first_block, call.index, call.slabs, call.counters, call.ids, call.count,
             call.miss_is_initial, call.first_values, call.values, call.slots);
}

// Finds or adds one key by eight lanes and writes its slot. Returns the slot where this group added the key, else NONE. A
// key without a row counts as added by the group that gets it its row.
__device__ __forceinline__ u32 claim_slot(const Index& index, Counters* counters, u64 key, u32* out, u32 lane, u32 mask,
                                          u32 shift) {
  if (key == EMPTY) {
    __syncwarp(mask);  // every lane has read *out
    u32 won = 0;
    if (lane == 0) {
      won = atomicCAS(&counters->special, NONE, SPECIAL) == NONE;
      *out = SPECIAL;
    }
    return __shfl_sync(mask, won, 0, 8) ? SPECIAL : NONE;
  }
  const u64 hash = mix(key);
  const Home home = home_of(index, hash);
  u32 bucket = bucket_of(hash, home.buckets);
  for (;;) {
    u32 empty;
    const u32 slot = probe(index, home, key, bucket, lane, mask, shift, &empty);
    if (slot != NONE) {
      if (lane == 0) *out = slot;
      if (!counters->dead) return NONE;
      u32 won = 0;
      if (lane == 0) won = atomicCAS(&row_number(index, slot), NONE, PENDING) == NONE;
      return __shfl_sync(mask, won, 0, 8) ? slot : NONE;
    }
    if (empty == NONE) {
      if (lane == 0) atomicAdd(&counters->lost, 1u);
      return NONE;
    }
    u64 before = 0;
    if (lane == 0) {
      before = atomicCAS(index.keys[empty / SLOTS] + empty % SLOTS, EMPTY, key);
      if (before == EMPTY || before == key) *out = empty;
    }
    before = __shfl_sync(mask, before, 0, 8);
    if (before == key) return NONE;
    if (before == EMPTY) return empty;
    bucket = empty / 8 - home.first * BUCKETS;  // another key took the slot
  }
}

// Adds every id whose slot is NONE, and writes the slot of its key. New rows get their first values and state. With
// `values_out`, the values of new rows go there too, and `is_read` tells for which ids; read_slots does the others.
__device__ __forceinline__ void insert_block(u32 block, const Index& index, const Slabs& slabs, Counters* counters,
                                             const i64* ids, u32 count, u32* out, const First& first_values,
                                             float* values_out, unsigned char* is_read) {
  // Rows of this block: one atomic on the counter of the table for all of them, which is the bottleneck otherwise.
  __shared__ u32 added;
  __shared__ u32 first_number;
  if (threadIdx.x == 0) added = 0;
  __syncthreads();
  GROUP_OF_8(block)
  const u32 which = thread >> 3;
  const bool is_absent = which < count && out[which] == NONE;
  const u64 key = is_absent ? (u64)ids[which] : 0;
  const u32 new_slot = is_absent ? claim_slot(index, counters, key, out + which, lane, mask, shift) : NONE;
  u32 number = 0;
  if (new_slot != NONE && lane == 0) number = atomicAdd(&added, 1u);
  __syncthreads();
  if (threadIdx.x == 0 && added) first_number = atomicAdd(&counters->rows, added);
  __syncthreads();
  if (new_slot == NONE) return;
  if (lane == 0) {
    number += first_number;
    if (key == EMPTY) {
      counters->special = number;
    } else {
      row_number(index, new_slot) = number;
    }
  }
  number = __shfl_sync(mask, number, 0, 8);
  float* values = row_at(slabs, number);
  const u64 key_hash = scramble(key);
  for (u32 column = lane; column < PADDED; column += 8) {
    const float value = column < DIM ? first_value(key_hash, column, first_values) : 0.0f;
    values[column] = value;
    if (values_out && column < DIM) values_out[(u64)which * DIM + column] = value;
  }
  if (is_read && lane == 0) is_read[which] = 1;
  for (u32 word = 0; word < MOST_STATES; ++word) {
    for (u32 column = lane; column < PADDED; column += 8) values[(1 + word) * PADDED + column] = first_state(word, column);
  }
  if (lane == 0) {
#define EXTRA_OF(slice) slice::first_extra(values + slice::kExtra);
    EACH_SLICE(EXTRA_OF)
#undef EXTRA_OF
    if (slabs.stamps) stamp_of(slabs, number) = 0;
    touch(slabs, number);
  }
}

extern "C" __global__ void insert_keys(Index index, Slabs slabs, Counters* counters, const i64* ids, u32 count, u32* out,
                                       First first_values, float* values_out, unsigned char* is_read) {
  insert_block(blockIdx.x, index, slabs, counters, ids, count, out, first_values, values_out, is_read);
}

// Starts a step of all tables, as begin_step.
extern "C" __global__ void begin_all(const Call* calls, u32 count) {
  const u32 which = blockIdx.x * blockDim.x + threadIdx.x;
  if (which < count) calls[which].counters->first_new = calls[which].counters->rows;
}

extern "C" __global__ void insert_all(const Call* calls, u32 count) {
  const Call& call = call_of(calls, count, false);
  insert_block(blockIdx.x - call.first_block, call.index, call.slabs, call.counters, call.ids, call.count, call.slots,
               call.first_values, nullptr, nullptr);
}

// Values of the ids that insert_keys found in the table.
extern "C" __global__ void read_slots(Index index, Slabs slabs, const Counters* counters, const u32* slots, u32 count,
                                      const unsigned char* is_read, float* out) {
  GROUP_OF_8(blockIdx.x)
  const u32 which = thread >> 3;
  if (which >= count || is_read[which]) return;
  const u32 slot = slots[which];
  const u32 row = slot == SPECIAL ? counters->special : row_number(index, slot);
  copy_values(row_at(slabs, row), out + (u64)which * DIM, lane);
}

// Numbers the distinct slots. `table` is a scratch table of (slot, place), all bits set, with a power of two of entries.
extern "C" __global__ void place_slots(const u32* slots, u32 count, u64* table, u32 table_mask, u32* entries, u32* distinct_slots,
                                       u32* distinct) {
  const u32 which = blockIdx.x * blockDim.x + threadIdx.x;
  u32 won = 0;
  u32 entry = NONE;
  u32 slot = NONE;
  if (which < count && (slot = slots[which]) != NONE && slot != SKIPPED) {
    entry = (slot * 0x9e3779b1u) & table_mask;
    u32* words = (u32*)table;
    for (;;) {
      u32 there = *(volatile const u32*)(words + 2 * entry);  // atomics on the entry of a hot id wait for each other
      if (there == NONE) there = atomicCAS(words + 2 * entry, NONE, slot);
      if (there == NONE) {
        won = 1;
        break;
      }
      if (there == slot) break;
      entry = (entry + 1) & table_mask;
    }
  }
  const u32 winners = __ballot_sync(0xffffffffu, won);
  if (winners) {
    const u32 lane = threadIdx.x & 31u;
    u32 base = 0;
    const u32 leader = (u32)__ffs((int)winners) - 1;
    if (lane == leader) base = atomicAdd(distinct, (u32)__popc(winners));
    base = __shfl_sync(0xffffffffu, base, leader);
    if (won) {
      const u32 place = base + (u32)__popc(winners & ((1u << lane) - 1u));
      ((u32*)table)[2 * entry + 1] = place;
      distinct_slots[place] = slot;
    }
  }
  if (which < count) entries[which] = entry;
}

extern "C" __global__ void clear_sums(float4* sums, const u32* distinct) {
  const u64 count = (u64)*distinct * (DIM4);
  const float4 zero = make_float4(0, 0, 0, 0);
  for (u64 at = blockIdx.x * (u64)blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) sums[at] = zero;
}

// Adds the gradient of every occurrence to the sum of its slot, DIM4 lanes each. A block sums up to HOT places in shared
// memory first: the first occurrence claims an entry, and a hot id claims one in almost every block.
extern "C" __global__ void sum_gradients(const u64* table, const u32* entries, const u32* bags, const i64* offsets, u32 count,
                                         int is_mean, const float* grads, float4* sums) {
  __shared__ __align__(16) float hot[HOT * PADDED];
  __shared__ u32 claims[HOT];
  for (u32 at = threadIdx.x; at < HOT * PADDED; at += blockDim.x) hot[at] = 0;
  for (u32 at = threadIdx.x; at < HOT; at += blockDim.x) claims[at] = NONE;
  __syncthreads();
  const u32 group = threadIdx.x / DIM4;
  const u32 lane = threadIdx.x % DIM4;
  const u32 groups = blockDim.x / DIM4;
  for (u32 which = blockIdx.x * groups + group; which < count; which += gridDim.x * groups) {
    const u32 entry = entries[which];
    if (entry == NONE) continue;
    const u32 place = ((const u32*)table)[2 * entry + 1];
    const u32 bag = bags ? bags[which] : which;
    float4 value;
    const float* gradient = grads + (u64)bag * DIM + lane * 4;
#if DIM % 4 == 0
    value = *(const float4*)gradient;
#else
    value.x = gradient[0];
    value.y = lane * 4 + 1 < DIM ? gradient[1] : 0;
    value.z = lane * 4 + 2 < DIM ? gradient[2] : 0;
    value.w = lane * 4 + 3 < DIM ? gradient[3] : 0;
#endif
    if (is_mean) {
      const float share = 1.0f / (float)(offsets[bag + 1] - offsets[bag]);
      value.x *= share;
      value.y *= share;
      value.z *= share;
      value.w *= share;
    }
    const u32 claim = place % HOT;
    u32 owner = *(volatile u32*)(claims + claim);
    if (owner == NONE) owner = atomicCAS(claims + claim, NONE, place);
    if (owner == NONE || owner == place) {
      float* sum = hot + claim * PADDED + lane * 4;
      atomicAdd(sum, value.x);
      atomicAdd(sum + 1, value.y);
      atomicAdd(sum + 2, value.z);
      atomicAdd(sum + 3, value.w);
    } else {
      add_vector(sums + (u64)place * DIM4 + lane, value);
    }
  }
  __syncthreads();
  for (u32 at = threadIdx.x; at < HOT * DIM4; at += blockDim.x) {
    const u32 place = claims[at / DIM4];
    if (place != NONE) add_vector(sums + (u64)place * DIM4 + at % DIM4, ((const float4*)hot)[at]);
  }
}

#if CHECK_FINITE
__device__ __forceinline__ bool is_finite(float4 value) {
  return isfinite(value.x) && isfinite(value.y) && isfinite(value.z) && isfinite(value.w);
}

// Counts a gradient that is not finite, and takes the row of a key that got it in this step.
__device__ __forceinline__ void skip_row(const Index& index, Counters* counters, u32 slot, u32 number) {
  atomicAdd(&counters->skipped, 1u);
  if (number < counters->first_new) return;
  atomicAdd(&counters->dead, 1u);
  if (slot == SPECIAL) {
    counters->special = NONE;
  } else {
    row_number(index, slot) = NONE;
  }
}
#endif

// Whether a slot has a row, which ids that count nowhere have not.
__device__ __forceinline__ bool has_row(u32 slot) { return slot < SKIPPED || slot == SPECIAL; }

__device__ __forceinline__ u64 key_of(const Index& index, u32 slot) {
  return slot == SPECIAL ? EMPTY : index.keys[slot / SLOTS][slot % SLOTS];
}

__device__ __forceinline__ void round_row(float* row, u32 lane, u64 key, u64 seed, i64 step_number) {
#define ROUND_OF(slice) slice::round_values(row, lane, key, seed, step_number);
  EACH_SLICE(ROUND_OF)
#undef ROUND_OF
}

#define GROUP_OF_LANES                                                                       \
  const u32 groups = blockDim.x / LANES;                                                     \
  const u32 group = threadIdx.x / LANES;                                                     \
  const u32 lane = threadIdx.x % LANES;                                                      \
  const u32 mask = LANES == 32 ? 0xffffffffu : ((1u << (LANES & 31)) - 1u) << (threadIdx.x & 31u & ~(LANES - 1u)); \
  const u32 stride = blocks * groups;

#if !HAS_PASSES
#define EXTRA_OF(slice) slice::Extra of_##slice;
struct Extras {
  EACH_SLICE(EXTRA_OF)
};
#undef EXTRA_OF

__device__ __forceinline__ void load_extras(Extras& extras, const float* row, const Rates& rates, i64 step_number) {
#define LOAD_OF(slice) extras.of_##slice = slice::load_extra(row + slice::kExtra, rates.of[slice::kNumber], step_number);
  EACH_SLICE(LOAD_OF)
#undef LOAD_OF
}

__device__ __forceinline__ void store_extras(const Extras& extras, float* row, i64 step_number) {
#define STORE_OF(slice) slice::store_extra(row + slice::kExtra, extras.of_##slice, step_number);
  EACH_SLICE(STORE_OF)
#undef STORE_OF
}

__device__ __forceinline__ void step_column(u32 column, float& value, float* state, u32 apart, float gradient,
                                            const Rates& rates, const Extras& extras) {
#define STEP_OF(slice)                                                                             \
  if (slice::kIsLast || column < slice::kEnd) {                                                    \
    slice::step(value, state, apart, gradient, rates.of[slice::kNumber], extras.of_##slice);       \
    return;                                                                                        \
  }
  EACH_SLICE(STEP_OF)
#undef STEP_OF
}

// One optimizer step per distinct slot, LANES lanes each, four rows in flight. A gradient that is not finite changes
// nothing.
__device__ __forceinline__ void update_block(u32 block, u32 blocks, const Index& index, const Slabs& slabs,
                                             Counters* counters, const u32* distinct_slots, u32 count, const float4* sums,
                                             const Rates& rates, u32 stamp, i64 step_number, u64 seed) {
  GROUP_OF_LANES
  for (u32 first = block * groups + group; first < count; first += 4 * stride) {
    float* row[4];
    u32 number[4];
    Extras extra[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 which = first + k * stride;
      row[k] = nullptr;
      const u32 slot = which < count ? distinct_slots[which] : NONE;
      if (has_row(slot)) {
        number[k] = slot == SPECIAL ? counters->special : row_number(index, slot);
        row[k] = row_at(slabs, number[k]);
        load_extras(extra[k], row[k], rates, step_number);
      }
    }
    for (u32 base = 0; base < DIM4; base += LANES) {
      const u32 column = base + lane;
      float4 gradient[4];
      float4 values[4];
      float4 state[4][MOST_STATES + 1];
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        gradient[k] = make_float4(0, 0, 0, 0);
        if (row[k] && column < DIM4) {
          gradient[k] = __ldcg(sums + (u64)(first + k * stride) * DIM4 + column);
          values[k] = __ldcg((const float4*)row[k] + column);
#pragma unroll
          for (u32 s = 0; s < MOST_STATES; ++s) state[k][s] = __ldcg((const float4*)(row[k] + (s + 1) * PADDED) + column);
        }
      }
#if CHECK_FINITE
      if (base == 0) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
          bool fine = is_finite(gradient[k]);
#if DIM4 > LANES
          for (u32 later = column + LANES; row[k] && later < DIM4; later += LANES) {
            fine = fine && is_finite(__ldcg(sums + (u64)(first + k * stride) * DIM4 + later));
          }
#endif
          if (__all_sync(mask, fine)) continue;
          if (lane == 0 && row[k]) skip_row(index, counters, distinct_slots[first + k * stride], number[k]);
          row[k] = nullptr;
        }
      }
#endif
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        if (row[k] && column < DIM4) {
          step_column(column * 4 + 0, values[k].x, &state[k][0].x, 4, gradient[k].x, rates, extra[k]);
          step_column(column * 4 + 1, values[k].y, &state[k][0].y, 4, gradient[k].y, rates, extra[k]);
          step_column(column * 4 + 2, values[k].z, &state[k][0].z, 4, gradient[k].z, rates, extra[k]);
          step_column(column * 4 + 3, values[k].w, &state[k][0].w, 4, gradient[k].w, rates, extra[k]);
          __stcg((float4*)row[k] + column, values[k]);
#pragma unroll
          for (u32 s = 0; s < MOST_STATES; ++s) __stcg((float4*)(row[k] + (s + 1) * PADDED) + column, state[k][s]);
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
#if ROUNDS
      __syncwarp(mask);
      if (row[k]) round_row(row[k], lane, key_of(index, distinct_slots[first + k * stride]), seed, step_number);
#endif
      if (row[k] && lane == 0) {
        store_extras(extra[k], row[k], step_number);
        mark(slabs, number[k], stamp);
      }
    }
  }
}
#else
// The same for rules that look at a whole row. The terms of a pass are added in the order of the columns, as on the host.
__device__ __forceinline__ void update_block(u32 block, u32 blocks, const Index& index, const Slabs& slabs,
                                             Counters* counters, const u32* distinct_slots, u32 count, const float4* sums,
                                             const Rates& rates, u32 stamp, i64 step_number, u64 seed) {
  __shared__ float terms[256 / LANES * PADDED];
  GROUP_OF_LANES
  float* own = terms + group * PADDED;
  for (u32 which = block * groups + group; which < count; which += stride) {
    const u32 slot = distinct_slots[which];
    if (!has_row(slot)) continue;
    const u32 number = slot == SPECIAL ? counters->special : row_number(index, slot);
    float* row = row_at(slabs, number);
    const float* gradient = (const float*)sums + (u64)which * PADDED;
#if CHECK_FINITE
    bool fine = true;
    for (u32 column = lane; column < DIM; column += LANES) fine = fine && isfinite(gradient[column]);
    if (!__all_sync(mask, fine)) {
      if (lane == 0) skip_row(index, counters, slot, number);
      continue;
    }
#endif
#define UPDATE_OF(slice) slice::update(row, gradient, own, lane, mask, rates.of[slice::kNumber], step_number);
    EACH_SLICE(UPDATE_OF)
#undef UPDATE_OF
#if ROUNDS
    __syncwarp(mask);
    round_row(row, lane, key_of(index, slot), seed, step_number);
#endif
    if (lane == 0) mark(slabs, number, stamp);
  }
}
#endif

extern "C" __global__ void update_rows(Index index, Slabs slabs, Counters* counters, const u32* distinct_slots,
                                       const u32* distinct, const float4* sums, Rates rates, u32 stamp, i64 step_number,
                                       u64 seed) {
  update_block(blockIdx.x, gridDim.x, index, slabs, counters, distinct_slots, *distinct, sums, rates, stamp, step_number,
               seed);
}

extern "C" __global__ void update_all(const Call* calls, u32 count, i64 step_number) {
  const Call& call = call_of(calls, count, true);
  update_block(blockIdx.x - call.first_update, call.updates, call.index, call.slabs, call.counters, call.slots, call.count,
               (const float4*)call.values, call.rates, call.stamp, step_number, call.seed);
}

// The sums of sum_gradients in one order, for deterministic tables: `order` has the occurrences by place, those of one
// place in the order of the batch, and `starts` the first of each place. DIM4 lanes per place.
extern "C" __global__ void sum_in_order(const i64* order, const i64* starts, const u32* bags, const i64* offsets,
                                        const u32* distinct, int is_mean, const float* grads, float* sums) {
  const u32 groups = blockDim.x / DIM4;
  const u32 lane = threadIdx.x % DIM4;
  for (u32 place = blockIdx.x * groups + threadIdx.x / DIM4; place < *distinct; place += gridDim.x * groups) {
    for (u32 column = lane * 4; column < lane * 4 + 4; ++column) {
      float sum = 0.0f;
      for (i64 at = starts[place]; at < starts[place + 1]; ++at) {
        const u32 bag = bags ? bags[order[at]] : (u32)order[at];
        float value = column < DIM ? grads[(u64)bag * DIM + column] : 0.0f;
        if (is_mean) value *= 1.0f / (float)(offsets[bag + 1] - offsets[bag]);
        sum = at == starts[place] ? value : sum + value;
      }
      sums[(u64)place * PADDED + column] = sum;
    }
  }
}

// Pools the rows of every bag, DIM4 lanes each; absent ids give their first values or zeros.
extern "C" __global__ void pool_rows(Slabs slabs, const u32* rows, const i64* ids, const i64* offsets, u32 bags, int is_mean,
                                     int miss_is_initial, First first_values, float* out) {
  const u32 groups = blockDim.x / DIM4;
  const u32 group = threadIdx.x / DIM4;
  const u32 lane = threadIdx.x % DIM4;
  const u32 bag = blockIdx.x * groups + group;
  if (group >= groups || bag >= bags) return;
  const i64 first = offsets ? offsets[bag] : bag;
  const i64 last = offsets ? offsets[bag + 1] : bag + 1;
  float4 sum = make_float4(0, 0, 0, 0);
  for (i64 at = first; at < last; ++at) {
    const u32 row = rows[at];
    float4 value = make_float4(0, 0, 0, 0);
    if (row < SKIPPED) {
      value = __ldcg((const float4*)row_at(slabs, row) + lane);
    } else if (row == NONE && miss_is_initial) {
      const u64 key_hash = scramble((u64)ids[at]);
      value.x = first_value(key_hash, lane * 4, first_values);
      value.y = first_value(key_hash, lane * 4 + 1, first_values);
      value.z = first_value(key_hash, lane * 4 + 2, first_values);
      value.w = first_value(key_hash, lane * 4 + 3, first_values);
    }
    sum.x += value.x;
    sum.y += value.y;
    sum.z += value.z;
    sum.w += value.w;
  }
  if (is_mean && last > first) {
    const float share = 1.0f / (float)(last - first);
    sum.x *= share;
    sum.y *= share;
    sum.z *= share;
    sum.w *= share;
  }
  float* target = out + (u64)bag * DIM + lane * 4;
#if DIM % 4 == 0
  *(float4*)target = sum;
#else
  target[0] = sum.x;
  if (lane * 4 + 1 < DIM) target[1] = sum.y;
  if (lane * 4 + 2 < DIM) target[2] = sum.z;
  if (lane * 4 + 3 < DIM) target[3] = sum.w;
#endif
}

// Bag of every id, from the offsets.
extern "C" __global__ void number_bags(const i64* offsets, u32 bags, u32* out) {
  const u32 bag = (blockIdx.x * blockDim.x + threadIdx.x) >> 3;
  if (bag >= bags) return;
  for (i64 at = offsets[bag] + (threadIdx.x & 7u); at < offsets[bag + 1]; at += 8) out[at] = bag;
}

// Moves the keys of one old page to the pages that its partition has in `index` now. One block per page.
struct OldPage {
  const u64* keys;
  const u32* rows;
};

extern "C" __global__ void move_pages(Index index, const OldPage* pages) {
  const OldPage page = pages[blockIdx.x];
  for (u32 from = threadIdx.x; from < SLOTS; from += blockDim.x) {
    const u64 key = page.keys[from];
    if (key == EMPTY) continue;
    const u64 hash = mix(key);
    const Home home = home_of(index, hash);
    u32 at = bucket_of(hash, home.buckets) * 8;
    while (atomicCAS(index.keys[home.first + at / SLOTS] + at % SLOTS, EMPTY, key) != EMPTY) {
      if (++at == home.buckets * 8) at = 0;
    }
    index.rows[home.first + at / SLOTS][at % SLOTS] = page.rows[from];
  }
}

// Adds keys with their row numbers to an index that has room; no key is there yet.
extern "C" __global__ void put_keys(Index index, const i64* ids, const u32* rows, u32 count) {
  for (u32 which = blockIdx.x * blockDim.x + threadIdx.x; which < count; which += gridDim.x * blockDim.x) {
    const u64 key = (u64)ids[which];
    if (key == EMPTY) continue;  // the host writes its row number to the counters
    const u64 hash = mix(key);
    const Home home = home_of(index, hash);
    u32 at = bucket_of(hash, home.buckets) * 8;
    while (atomicCAS(index.keys[home.first + at / SLOTS] + at % SLOTS, EMPTY, key) != EMPTY) {
      if (++at == home.buckets * 8) at = 0;
    }
    index.rows[home.first + at / SLOTS][at % SLOTS] = rows[which];
  }
}

extern "C" __global__ void fill_keys(u64** blocks, u32 count) {
  for (u32 block = blockIdx.x; block < count; block += gridDim.x) {
    u32* rows = (u32*)(blocks[block] + SLOTS);
    for (u32 slot = threadIdx.x; slot < SLOTS; slot += blockDim.x) {
      blocks[block][slot] = EMPTY;
      rows[slot] = 0;  // not NONE: claim_slot compares
    }
  }
}

// All (id, row number) pairs, for snapshots and iteration; `cursor` counts them.
extern "C" __global__ void list_keys(Index index, const Counters* counters, i64* ids, u32* rows, u32* cursor) {
  for (u32 page = blockIdx.x; page < index.places; page += gridDim.x) {
    if (!index.keys[page]) continue;
    for (u32 slot = threadIdx.x; slot < SLOTS; slot += blockDim.x) {
      const u64 key = index.keys[page][slot];
      const u32 row = index.rows[page][slot];
      if (key == EMPTY || row == NONE) continue;
      const u32 at = atomicAdd(cursor, 1u);
      ids[at] = (i64)key;
      rows[at] = row;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && counters->special != NONE) {
    const u32 at = atomicAdd(cursor, 1u);
    ids[at] = (i64)EMPTY;
    rows[at] = counters->special;
  }
}

// The ids of rows that changed since the last drain, as list_keys. Without `ids` the kernel only counts.
extern "C" __global__ void list_touched(Index index, Slabs slabs, const Counters* counters, i64* ids, u32* cursor) {
  for (u32 page = blockIdx.x; page < index.places; page += gridDim.x) {
    if (!index.keys[page]) continue;
    for (u32 slot = threadIdx.x; slot < SLOTS; slot += blockDim.x) {
      const u64 key = index.keys[page][slot];
      const u32 row = index.rows[page][slot];
      if (key == EMPTY || row == NONE || !is_touched(slabs, row)) continue;
      const u32 at = atomicAdd(cursor, 1u);
      if (ids) ids[at] = (i64)key;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && counters->special != NONE && is_touched(slabs, counters->special)) {
    const u32 at = atomicAdd(cursor, 1u);
    if (ids) ids[at] = (i64)EMPTY;
  }
}

// Copies whole rows and their stamps out (to_rows = 0) or in (1). Rows that come in count as changed.
extern "C" __global__ void copy_rows(Slabs slabs, const u32* numbers, u32 count, float* flat, int* stamps, int to_rows) {
  const u64 total = (u64)count * STRIDE;
  for (u64 at = blockIdx.x * (u64)blockDim.x + threadIdx.x; at < total; at += (u64)gridDim.x * blockDim.x) {
    const u32 number = numbers[at / STRIDE];
    if (number >= SKIPPED) continue;
    float* place = row_at(slabs, number) + at % STRIDE;
    const bool is_first = at % STRIDE == 0;
    if (to_rows) {
      *place = flat[at];
      if (is_first && slabs.stamps) stamp_of(slabs, number) = (u16)stamps[at / STRIDE];
      if (is_first) touch(slabs, number);
    } else {
      flat[at] = *place;
      if (is_first) stamps[at / STRIDE] = slabs.stamps ? stamp_of(slabs, number) : 0;
    }
  }
}

extern "C" __global__ void read_stamps(Slabs slabs, const u32* numbers, u32 count, int* stamps) {
  const u32 which = blockIdx.x * blockDim.x + threadIdx.x;
  if (which < count) stamps[which] = stamp_of(slabs, numbers[which]);
}

// Replaces the stamps of all rows, when the times behind them are numbered again.
extern "C" __global__ void replace_stamps(Slabs slabs, const Counters* counters, const int* replacements) {
  for (u32 row = blockIdx.x * blockDim.x + threadIdx.x; row < counters->rows; row += gridDim.x * blockDim.x) {
    stamp_of(slabs, row) = (u16)replacements[stamp_of(slabs, row)];
  }
}

// Row number of every slot of insert_keys.
extern "C" __global__ void rows_of_slots(Index index, const Counters* counters, const u32* slots, u32 count, u32* out) {
  const u32 which = blockIdx.x * blockDim.x + threadIdx.x;
  if (which >= count) return;
  const u32 slot = slots[which];
  out[which] = slot == NONE || slot == SKIPPED ? NONE : slot == SPECIAL ? counters->special : row_number(index, slot);
}
