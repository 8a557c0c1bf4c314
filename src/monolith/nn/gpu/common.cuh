// common.cuh: settings and arithmetic that slices and kernels share. The text before it defines SLICES; vectors.cuh is
// before it too.

// Settings of the initializers, by slice.
struct First {
  u64 seed[SLICES];
  float low[SLICES];
  float width[SLICES];
  float largest[SLICES];
};

// Learning rates of a step, by slice.
struct Rates {
  float of[SLICES];
};

__device__ __forceinline__ u64 scramble(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ float unit_float(u64 bits) { return (float)(bits >> 40) * 0x1p-24f; }

// One of the two half-precision values around `value`, by the draw; the same as on the host.
__device__ __forceinline__ float round_to_half(float value, float draw) {
  float magnitude = fabsf(value);
  if (magnitude > 65504.0f) magnitude = 65504.0f;
  const float power = __uint_as_float(__float_as_uint(magnitude) & 0x7f800000u);
  const float spacing = (power < 0x1p-14f ? 0x1p-14f : power) * 0x1p-10f;
  const float position = magnitude / spacing;
  const float below = floorf(position);
  return copysignf((draw < position - below ? below + 1.0f : below) * spacing, value);
}

