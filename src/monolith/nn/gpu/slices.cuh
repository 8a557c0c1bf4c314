// slices.cuh: one slice of a row. Compiled once per slice, behind rules.cuh and inside the namespace of the slice.
//
// Compiled with NUMBER (of the slice), FIRST and END (its columns), EXTRA (words of a row before its state per row), IS_LAST,
// INIT_KIND, ROUND_HALF and the macros of the rule. A row has the values of all slices, then the state words, each as wide as
// the values, then the state per row of each slice.

enum : unsigned { kNumber = NUMBER, kFirst = FIRST, kEnd = END, kExtra = EXTRA, kStates = STATES };
enum : bool { kIsLast = IS_LAST };

// The first value of a column: the same numbers as the host's initializers.
__device__ __forceinline__ float first_value(u64 key_hash, u32 column, const First& first) {
#if INIT_KIND == 1
  const u64 draw = scramble(first.seed[kNumber] ^ key_hash);
  const u64 bits = scramble(draw + (column - kFirst) / 2);
  const float share = unit_float((column - kFirst) & 1 ? bits << 24 : bits);
  return fminf(first.low[kNumber] + share * first.width[kNumber], first.largest[kNumber]);
#else
  return first.low[kNumber];
#endif
}

__device__ __forceinline__ void round_values(float* row, u32 lane, u64 key, u64 seed, step_t step_number) {
#if ROUND_HALF
  const u64 draw = scramble(scramble((seed + kNumber) ^ scramble(key)) ^ (u64)step_number);
  for (u32 column = kFirst + lane; column < kEnd; column += LANES) {
    row[column] = round_to_half(row[column], unit_float(scramble(draw + column)));
  }
#endif
}

// One optimizer step on the columns of the slice, by LANES lanes. `terms` has room for a number per column.
__device__ __forceinline__ void update(float* row, const float* gradient, float* terms, u32 lane, u32 mask, float rate,
                                       step_t step_number) {
  Extra extra = load_extra(row + kExtra, rate, step_number);
#if PASSES
  for (int number_of_pass = 0; number_of_pass < PASSES; ++number_of_pass) {
    for (u32 column = kFirst + lane; column < kEnd; column += LANES) {
      terms[column] = pass(number_of_pass, row[column], row + PADDED + column, PADDED, gradient[column], rate, extra);
    }
    __syncwarp(mask);
    for (u32 column = kFirst; column < kEnd; ++column) add(number_of_pass, extra, terms[column]);
    finish(number_of_pass, extra, rate);
    __syncwarp(mask);
  }
#else
  for (u32 column = kFirst + lane; column < kEnd; column += LANES) {
    step(row[column], row + PADDED + column, PADDED, gradient[column], rate, extra);
  }
  __syncwarp(mask);
#endif
  if (lane == 0) store_extra(row + kExtra, extra, step_number);
}
