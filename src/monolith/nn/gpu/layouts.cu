// layouts.cu: the layouts of a model on a GPU, from rows of distinct ids to tensors, and from their gradients back.
//
// The host numbers the ids of a batch and packs the plan into one buffer (StepPlan::pack): `plan` points to it, and places
// in it are bytes from its start. `rows` has the rows of all tables, one table after the other; `sums` has their gradients,
// each row padded to a multiple of four floats. A bag has places among the distinct ids of its table.
//
// Wiring comes from the declaration of the model. A column of an output is the sum of its sources, in the order of the
// host; a column of a feature's rows has targets, the columns of outputs that it went to. vectors.cuh is before this text.

#define NONE 0xffffffffu

struct Table {
  u64 ids;
  u64 rows;  // floats before those of this table
  u64 sums;
  u32 count;  // distinct ids
  u32 first_row;
};

struct Feature {
  u64 places;
  u64 offsets;  // 0: every bag has one id
  u32 count;
  u32 first;  // occurrences before those of this feature
  u32 is_shared;
  u32 unused;
};

struct Plan {
  const u8* bytes;
  u32 tables;
  u32 features;
  u32 examples;
};

struct Form {
  u32 table;
  u32 dim;
  u32 padded;
  u32 is_mean;
  u32 is_first;  // ids keep their positions
  u32 columns;   // place of its first column in `target_starts`
};

struct Source {
  u32 feature;
  u32 column;
  u32 position;  // of an id in its bag; NONE: all of them
};

struct Target {
  u32 output;
  u32 offset;
  u32 stride;  // floats from one position to the next
};

struct Wiring {
  const Form* forms;
  const u32* source_starts;
  const Source* sources;
  const u32* target_starts;
  const Target* targets;
};

// An output, or its gradient. No values: the output has no part in the loss.
struct Output {
  float* values;
  const float* shared;  // gradient of all examples together, for features with one bag
  u32 width;
  u32 first_column;
  u64 first_block;
};

struct Bag {
  u32 begin;
  u32 end;
};

__device__ __forceinline__ const Table& table_of(const Plan& plan, u32 number) { return ((const Table*)plan.bytes)[number]; }

__device__ __forceinline__ const Feature& feature_of(const Plan& plan, u32 number) {
  return ((const Feature*)(plan.bytes + plan.tables * sizeof(Table)))[number];
}

__device__ __forceinline__ const u32* places_of(const Plan& plan, const Feature& feature) {
  return (const u32*)(plan.bytes + feature.places);
}

__device__ __forceinline__ Bag bag_of(const Plan& plan, const Feature& feature, u32 bag) {
  if (!feature.offsets) return {bag, bag + 1};
  const u32* offsets = (const u32*)(plan.bytes + feature.offsets);
  return {offsets[bag], offsets[bag + 1]};
}

// Fills all outputs, a thread per float.
extern "C" __global__ void fill_outputs(Plan plan, Wiring wiring, const Output* outputs, u32 count, const float* rows) {
  u32 low = 0;
  u32 high = count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (outputs[middle].first_block <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Output& output = outputs[low];
  const u32 at = (blockIdx.x - (u32)output.first_block) * blockDim.x + threadIdx.x;
  const u32 example = at / output.width;
  if (example >= plan.examples) return;
  const u32 column = output.first_column + at % output.width;
  const u32 last = wiring.source_starts[column + 1];
  float value = 0.0f;
  bool is_empty = true;
  for (u32 which = wiring.source_starts[column]; which < last; ++which) {
    const Source source = wiring.sources[which];
    const Form& form = wiring.forms[source.feature];
    const Feature& feature = feature_of(plan, source.feature);
    Bag bag = bag_of(plan, feature, feature.is_shared ? 0 : example);
    if (source.position != NONE) {
      bag.begin += source.position;
      if (bag.begin + 1 < bag.end) bag.end = bag.begin + 1;
    }
    if (bag.begin >= bag.end) continue;
    const u32* places = places_of(plan, feature);
    const float* values = rows + table_of(plan, form.table).rows + source.column;
    float total = values[(u64)places[bag.begin] * form.dim];
    for (u32 id = bag.begin + 1; id < bag.end; ++id) total += values[(u64)places[id] * form.dim];
    if (form.is_mean && bag.end - bag.begin > 1) total *= 1.0f / (float)(bag.end - bag.begin);
    value = is_empty ? total : value + total;
    is_empty = false;
  }
  output.values[at] = value;
}

// The gradient of one target for an id of a bag, or zero where the output has none.
__device__ __forceinline__ float gradient_of(const Output* grads, const Target& target, const Feature& feature, u32 bag,
                                             u32 position) {
  const Output& output = grads[target.output];
  if (!output.values) return 0.0f;
  const u32 column = target.offset + position * target.stride;
  return feature.is_shared ? output.shared[column] : output.values[(u64)bag * output.width + column];
}

// The gradient of a column of a feature's rows, summed over its targets.
__device__ __forceinline__ float column_gradient(const Wiring& wiring, const Output* grads, const Form& form,
                                                 const Feature& feature, u32 bag, u32 position, u32 column) {
  if (column >= form.dim) return 0.0f;
  const u32 last = wiring.target_starts[form.columns + column + 1];
  float value = 0.0f;
  for (u32 which = wiring.target_starts[form.columns + column]; which < last; ++which) {
    value += gradient_of(grads, wiring.targets[which], feature, bag, position);
  }
  return value;
}

// Blocks take turns over the features; the blocks of a feature share out its bags. `at` runs over bags and parts of rows.
#define EACH_PART_OF_A_BAG(parts)                                                                          \
  const u32 which = blockIdx.x % plan.features;                                                            \
  const Feature& feature = feature_of(plan, which);                                                        \
  const Form& form = wiring.forms[which];                                                                  \
  const u32* places = places_of(plan, feature);                                                            \
  const u64 count = (u64)(feature.is_shared ? 1 : plan.examples) * (parts);                                \
  const u64 stride = (u64)(gridDim.x / plan.features) * blockDim.x;                                        \
  for (u64 at = (u64)(blockIdx.x / plan.features) * blockDim.x + threadIdx.x; at < count; at += stride)

// Adds the gradients of all outputs to the sums, which are zero: four columns of a bag per thread.
extern "C" __global__ void add_gradients(Plan plan, Wiring wiring, const Output* grads, float* sums) {
  EACH_PART_OF_A_BAG(form.padded / 4) {
    const u32 bag = (u32)(at / (form.padded / 4));
    const u32 column = (u32)(at % (form.padded / 4)) * 4;
    const Bag ids = bag_of(plan, feature, bag);
    float* row = sums + table_of(plan, form.table).sums + column;
    float4 value;
    for (u32 id = ids.begin; id < ids.end; ++id) {
      if (id == ids.begin || form.is_first) {
        const u32 position = form.is_first ? id - ids.begin : 0;
        value.x = column_gradient(wiring, grads, form, feature, bag, position, column);
        value.y = column_gradient(wiring, grads, form, feature, bag, position, column + 1);
        value.z = column_gradient(wiring, grads, form, feature, bag, position, column + 2);
        value.w = column_gradient(wiring, grads, form, feature, bag, position, column + 3);
        if (form.is_mean && ids.end - ids.begin > 1) {
          const float share = 1.0f / (float)(ids.end - ids.begin);
          value.x *= share;
          value.y *= share;
          value.z *= share;
          value.w *= share;
        }
      }
      add_vector((float4*)(row + (u64)places[id] * form.padded), value);
    }
  }
}

// Row and bag of every occurrence, for sums in one order.
extern "C" __global__ void list_occurrences(Plan plan, Wiring wiring, u32* rows, u32* bags) {
  EACH_PART_OF_A_BAG(1) {
    const Bag ids = bag_of(plan, feature, (u32)at);
    for (u32 id = ids.begin; id < ids.end; ++id) {
      rows[feature.first + id] = table_of(plan, form.table).first_row + places[id];
      bags[feature.first + id] = (u32)at;
    }
  }
}

// The sums of add_gradients in the order of the host, a thread per float. `order` has the occurrences by row, those of one
// row in the order of the batch, and `starts` the first of each row.
extern "C" __global__ void sum_in_order(Plan plan, Wiring wiring, const Output* grads, const i64* order, const i64* starts,
                                        const u32* bags, u64 count, const u32* dims, float* sums) {
  const u64 at = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  if (at >= count) return;
  u32 low = 0;
  u32 high = plan.tables;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (table_of(plan, middle).sums <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Table& table = table_of(plan, low);
  const u32 padded = (dims[low] + 3) / 4 * 4;
  const u32 row = table.first_row + (u32)((at - table.sums) / padded);
  const u32 column = (u32)((at - table.sums) % padded);
  float sum = 0.0f;
  i64 next = starts[row];
  const i64 end = column < dims[low] ? starts[row + 1] : next;
  u32 which = 0;
  while (next < end) {
    while (which + 1 < plan.features && feature_of(plan, which + 1).first <= order[next]) ++which;
    const Feature& feature = feature_of(plan, which);
    const Form& form = wiring.forms[which];
    const i64 first = next;
    while (next < end && order[next] < (i64)feature.first + feature.count) ++next;
    const u32 last = wiring.target_starts[form.columns + column + 1];
    for (u32 target = wiring.target_starts[form.columns + column]; target < last; ++target) {
      for (i64 place = first; place < next; ++place) {
        const u32 bag = bags[order[place]];
        const Bag ids = bag_of(plan, feature, bag);
        const u32 position = form.is_first ? (u32)(order[place] - feature.first) - ids.begin : 0;
        float value = gradient_of(grads, wiring.targets[target], feature, bag, position);
        if (form.is_mean && ids.end - ids.begin > 1) value *= 1.0f / (float)(ids.end - ids.begin);
        sum += value;
      }
    }
  }
  sums[at] = sum;
}

// The sum of squares of a table's gradients, in parts: `parts` has a number per block.
extern "C" __global__ void sum_squares(Plan plan, const u32* dims, const float* sums, double* parts) {
  __shared__ double own[256];
  const u32 number = blockIdx.x % plan.tables;
  const Table& table = table_of(plan, number);
  const u64 count = (u64)table.count * ((dims[number] + 3) / 4 * 4);
  double sum = 0.0;
  const u64 stride = (u64)(gridDim.x / plan.tables) * blockDim.x;
  for (u64 at = (u64)(blockIdx.x / plan.tables) * blockDim.x + threadIdx.x; at < count; at += stride) {
    const double value = (double)sums[table.sums + at];
    sum += value * value;
  }
  own[threadIdx.x] = sum;
  __syncthreads();
  for (u32 half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) own[threadIdx.x] += own[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) parts[blockIdx.x] = own[0];
}
