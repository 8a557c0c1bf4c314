// vectors.cuh: types and sums that all kernels share.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Adds to a sum that other threads add to, by one instruction where the GPU has it.
__device__ __forceinline__ void add_vector(float4* sum, float4 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sum), "f"(value.x), "f"(value.y), "f"(value.z),
               "f"(value.w)
               : "memory");
#else
  atomicAdd(&sum->x, value.x);
  atomicAdd(&sum->y, value.y);
  atomicAdd(&sum->z, value.z);
  atomicAdd(&sum->w, value.w);
#endif
}

