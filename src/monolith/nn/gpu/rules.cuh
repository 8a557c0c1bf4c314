// rules.cuh: one coordinate of each update rule, as on the host (cpp/engine/src/rules). State arrays of a row are float4
// wide, so the words of one coordinate are 4 floats apart.
//
// A rule has STATES words per coordinate with the first value FIRST_STATE, and EXTRA words per row in `Extra`.

#if RULE_SGD
#define STATES 0
#define FIRST_STATE 0.0f
struct Extra {};
__device__ __forceinline__ Extra load_extra(const float*) { return {}; }
__device__ __forceinline__ void first_extra(float*) {}
__device__ __forceinline__ void store_extra(float*, const Extra&) {}
__device__ __forceinline__ void step(float& w, float*, float g, float rate, const Extra&) {
  w -= rate * g;
}
#elif RULE_ADAGRAD
#define STATES 1
#define FIRST_STATE SETTING_INITIAL
struct Extra {};
__device__ __forceinline__ Extra load_extra(const float*) { return {}; }
__device__ __forceinline__ void first_extra(float*) {}
__device__ __forceinline__ void store_extra(float*, const Extra&) {}
__device__ __forceinline__ void step(float& w, float* norm, float g, float rate, const Extra&) {
  const float slope = g + SETTING_DECAY * w;
  norm[0] += slope * slope;
  w -= norm[0] == 0.0f ? 0.0f : rate * slope / sqrtf(norm[0]);
}
#elif RULE_ADAM
#define STATES 2
#define FIRST_STATE 0.0f
struct Extra {
  float power1, power2;
};
__device__ __forceinline__ Extra load_extra(const float* at) { return {at[0], at[1]}; }
__device__ __forceinline__ void first_extra(float* at) {
  at[0] = SETTING_BETA1;
  at[1] = SETTING_BETA2;
}
__device__ __forceinline__ float next_power(float power, float beta) {
  const float next = power * beta;
  return next < 1.17549435e-38f ? 0.0f : next;
}
__device__ __forceinline__ void store_extra(float* at, const Extra& extra) {
  at[0] = next_power(extra.power1, SETTING_BETA1);
  at[1] = next_power(extra.power2, SETTING_BETA2);
}
__device__ __forceinline__ void step(float& w, float* state, float g, float rate, const Extra& extra) {
  const float scaled = rate * sqrtf(1.0f - extra.power2) / (1.0f - extra.power1);
  const float slope = g + SETTING_DECAY * w;
  float& mean = state[0];
  float& square = state[4];
  mean += (slope - mean) * (1.0f - SETTING_BETA1);
  square += (slope * slope - square) * (1.0f - SETTING_BETA2);
#if SETTING_NESTEROV
  w -= ((1.0f - SETTING_BETA1) * slope + SETTING_BETA1 * mean) * scaled / (sqrtf(square) + SETTING_EPSILON);
#else
  w -= mean * scaled / (sqrtf(square) + SETTING_EPSILON);
#endif
}
#endif
