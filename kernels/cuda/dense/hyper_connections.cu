// hyper_pre, hyper_post, hyper_head, broadcast_streams (docs/deepseek-v4.md section 2.1).
//
// The products of `fn` and a row's streams are sums over N D columns, 16384 in V4-Flash. They are cut into
// chunks of kChunk columns, which are summed each by itself and then added in ascending order, so that one
// row alone occupies many blocks and no sum depends on how many rows there are. Everything after the products
// is rounded as on the CPU.
//
// Bytes: `fn` of hyper_pre has 4 (2 + N) N N D, 1.6 MB in V4-Flash (2.8 MB in V4-Pro), and stays in the L2
// cache over a forward's rows. A block reads its columns of `fn` once for kTileRows rows. A row's streams
// have 4 N D bytes, 64 KB (112 KB): read once for the products and once for the sum of streams; hyper_post
// reads and writes them once.

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int32_t kMaxStreams = 16;
constexpr int32_t kMaxOutputs = (2 + kMaxStreams) * kMaxStreams;

// ---- products ----

constexpr int32_t kChunk = 256;      // columns of a block: one row of V4-Flash occupies 64
constexpr int32_t kTileRows = 4;     // rows of a block
constexpr int32_t kTileOutputs = 4;  // rows of `fn` that a warp has at a time
constexpr int32_t kProductWarps = 6;

struct ProductsParams {
  // [R, chunks, outputs + 1]: of each chunk the products with the rows of fn, then the sum of squares.
  float* partials;
  Matrix<const float> streams;  // [R, N D]
  const float* fn;              // [outputs, N D]
  int32_t outputs;
};

struct ProductSums {
  float products[kTileRows][kTileOutputs];
  float squares[kTileRows];
};

__device__ __forceinline__ void AddProducts(float& sum, const Vec4& a, const Vec4& b) {
#pragma unroll
  for (int e = 0; e < 4; ++e) sum = fmaf(a.x[e], b.x[e], sum);
}

// A lane's sums over columns [begin, end). Rows and outputs past the last one repeat it.
template <bool aligned>
__device__ __forceinline__ ProductSums SumColumns(const ProductsParams& p, int32_t first_row,
                                                  int32_t first_output, int32_t begin, int32_t end,
                                                  int32_t lane) {
  ProductSums sums = {};
  for (int32_t column = begin + 4 * lane; column < end; column += 4 * 32) {
    Vec4 x[kTileRows];
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const int32_t r = min(first_row + i, p.streams.rows - 1);
      x[i] = LoadVec4<aligned>(p.streams.row(r), column, end);
      AddProducts(sums.squares[i], x[i], x[i]);
    }
#pragma unroll
    for (int j = 0; j < kTileOutputs; ++j) {
      const int64_t output = min(first_output + j, p.outputs - 1);
      const Vec4 weights = LoadVec4<aligned>(p.fn + output * p.streams.cols, column, end);
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) AddProducts(sums.products[i][j], x[i], weights);
    }
  }
  return sums;
}

__device__ __forceinline__ float SumOfLanes(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// Block (t, c): rows of tile t, columns of chunk c, all outputs.
template <bool aligned>
__global__ void __launch_bounds__(32 * kProductWarps)
    ProductsKernel(const __grid_constant__ ProductsParams p) {
  GridDependencySync();
  const int32_t lane = threadIdx.x % 32;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kTileRows;
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * kChunk;
  const int32_t end = min(begin + kChunk, p.streams.cols);
  const int32_t step = static_cast<int32_t>(blockDim.x) / 32 * kTileOutputs;
  for (int32_t first = static_cast<int32_t>(threadIdx.x) / 32 * kTileOutputs; first < p.outputs;
       first += step) {
    const ProductSums sums = SumColumns<aligned>(p, first_row, first, begin, end, lane);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      float own = SumOfLanes(sums.squares[i]);  // of lane kTileOutputs; lane j < kTileOutputs has output j
#pragma unroll
      for (int j = 0; j < kTileOutputs; ++j) {
        const float sum = SumOfLanes(sums.products[i][j]);
        if (lane == j) own = sum;
      }
      const int32_t output = lane == kTileOutputs ? p.outputs : first + lane;
      const bool stored = lane < kTileOutputs ? output < p.outputs : lane == kTileOutputs && first == 0;
      if (stored && first_row + i < p.streams.rows) {
        const int64_t chunk = static_cast<int64_t>(first_row + i) * gridDim.y + blockIdx.y;
        p.partials[chunk * (p.outputs + 1) + output] = own;
      }
    }
  }
}

// ---- from products to weights, a warp per row ----

constexpr int32_t kStagedPartials = 4096;  // floats: V4-Pro's 112 chunks have 2,800
constexpr int kHeldStreams = 4;            // DeepSeek-V4's
static_assert(kStagedPartials > kMaxOutputs);

// The sum of four lanes' values, `step` lanes apart from `first` on, in their order.
__device__ __forceinline__ float SumOf4(float x, int32_t first, int32_t step) {
  float values[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) values[i] = __shfl_sync(kAllLanes, x, first + i * step);
  float sum = values[0];  // adding it to 0 would not change it: all are positive or NaN
#pragma unroll
  for (int32_t i = 1; i < 4; ++i) sum += values[i];
  return sum;
}

// BalanceStreams for four streams, DeepSeek-V4's: lane l has the element in row l / 4 % 4, column l % 4, and
// lanes from 16 on the same ones. 39 passes of about 100 cycles; through shared memory, with a lane per row,
// they took 4 to 5 times as long. The additions have BalanceStreams' order.
__device__ __forceinline__ void BalanceFourStreams(const HyperPreParams& p, float* c, int32_t lane) {
  const int32_t row = lane & ~3, column = lane & ~12;  // the first lane of each
  float x = c[lane % 16];
  float largest = __shfl_sync(kAllLanes, x, row);
#pragma unroll
  for (int32_t k = 1; k < 4; ++k) {
    const float other = __shfl_sync(kAllLanes, x, row + k);
    largest = largest < other ? other : largest;
  }
  x = Exp(x - largest);
  x = x / SumOf4(x, row, 1) + p.hc_eps;
  for (int32_t pass = 0; pass < 2 * p.sinkhorn_iters - 1; ++pass) {
    x /= (pass % 2 == 0 ? SumOf4(x, column, 4) : SumOf4(x, row, 1)) + p.hc_eps;
  }
  if (lane < 16) c[lane] = x;
  __syncwarp();
}

// Softmax of the rows of C, then Sinkhorn's iterations: columns, then rows and columns by turns.
__device__ void BalanceStreams(const HyperPreParams& p, float* c, int32_t lane) {
  const int32_t n = p.stream_count;
  if (lane < n) {
    float* const row = c + lane * n;
    float largest = row[0];
    for (int32_t k = 1; k < n; ++k) largest = largest < row[k] ? row[k] : largest;
    float sum = 0.0f;
    for (int32_t k = 0; k < n; ++k) sum += row[k] = Exp(row[k] - largest);
    for (int32_t k = 0; k < n; ++k) row[k] = row[k] / sum + p.hc_eps;
  }
  __syncwarp();
  // A lane has a whole column or row.
  for (int32_t pass = 0; pass < 2 * p.sinkhorn_iters - 1; ++pass) {
    const bool by_columns = pass % 2 == 0;
    float* const first = c + (by_columns ? lane : lane * n);
    const int32_t stride = by_columns ? n : 1;
    if (lane < n) {
      float sum = 0.0f;
      for (int32_t i = 0; i < n; ++i) sum += first[i * stride];
      for (int32_t i = 0; i < n; ++i) first[i * stride] /= sum + p.hc_eps;
    }
    __syncwarp();
  }
}

struct ReduceShared {
  float weights[kMaxOutputs + 1];  // at first the products and the sum of squares
  float base[kMaxOutputs];
  float scale[3];
  float partials[kStagedPartials];
};

// Turns the products of a row into pre, post and C before it is balanced.
__device__ void MakeWeights(const HyperPreParams& p, float factor, ReduceShared& shared, int32_t lane) {
  const int32_t n = p.stream_count;
  for (int32_t i = lane; i < p.mix.cols; i += 32) {
    const int32_t part = i < n ? 0 : i < 2 * n ? 1 : 2;
    const float value = shared.weights[i] * factor * shared.scale[part] + shared.base[i];
    shared.weights[i] = part == 2 ? value : part == 1 ? 2.0f * Sigmoid(value) : Sigmoid(value) + p.hc_eps;
  }
}

__device__ void MakeWeights(const HyperHeadParams& p, float factor, ReduceShared& shared, int32_t lane) {
  for (int32_t i = lane; i < p.stream_count; i += 32) {
    shared.weights[i] = Sigmoid(shared.weights[i] * factor * shared.scale[0] + shared.base[i]) + p.hc_eps;
  }
}

// Balances the C that MakeWeights has left.
__device__ void Balance(const HyperPreParams& p, ReduceShared& shared, int32_t lane) {
  float* const c = shared.weights + 2 * p.stream_count;
  p.stream_count == 4 ? BalanceFourStreams(p, c, lane) : BalanceStreams(p, c, lane);
}
__device__ void Balance(const HyperHeadParams&, ReduceShared&, int32_t) {}

// Where the weights go; the first N are pre.
constexpr Matrix<float> WeightsOf(const HyperPreParams& p) { return p.mix; }
constexpr Matrix<float> WeightsOf(const HyperHeadParams& p) { return p.pre; }
constexpr int32_t ScalesOf(const HyperPreParams&) { return 3; }
constexpr int32_t ScalesOf(const HyperHeadParams&) { return 1; }

template <class Params>
struct ReduceParams {
  Params op;
  const float* partials;  // of ProductsParams
  int32_t chunks;
};

// Copies `count` floats to shared memory, four loads of a thread in flight.
__device__ void Stage(float* shared, const float* from, int32_t count) {
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < count; first += 4 * threads) {
    float loaded[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (first + k * threads < count) loaded[k] = from[first + k * threads];
    }
    IssueLoads();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (first + k * threads < count) shared[first + k * threads] = loaded[k];
    }
  }
}

// Adds the chunks' partial sums, each output's by a thread in ascending order of chunks. Called by all
// threads of the block.
__device__ void AddPartials(const float* partials, int32_t chunks, int32_t sums, ReduceShared& shared) {
  const int32_t most = kStagedPartials / sums;  // chunks of a stage: all those of a row of V4
  for (int32_t begin = 0; begin < chunks; begin += most) {
    const int32_t count = min(most, chunks - begin);
    if (begin > 0) __syncthreads();
    Stage(shared.partials, partials + static_cast<int64_t>(begin) * sums, count * sums);
    __syncthreads();
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < sums; i += static_cast<int32_t>(blockDim.x)) {
      float sum = begin > 0 ? shared.weights[i] : 0.0f;
#pragma unroll 16
      for (int32_t chunk = 0; chunk < count; ++chunk) sum += shared.partials[chunk * sums + i];
      shared.weights[i] = sum;
    }
  }
}

// Four columns of a row's streams, of kHeldStreams or fewer.
template <bool aligned>
struct HeldStreams {
  Vec4 x[kHeldStreams];

  __device__ __forceinline__ void Load(const float* streams, int32_t count, int32_t first, int32_t width) {
    if (count > kHeldStreams || first >= width) return;
#pragma unroll
    for (int i = 0; i < kHeldStreams; ++i) {
      if (i < count) x[i] = LoadVec4<aligned>(streams + i * width, first, width);
    }
  }
};

// Adds a stream to the weighted sum, or starts the sum with it.
__device__ __forceinline__ void AddStream(Vec4& sum, float weight, const Vec4& x, bool starts) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float term = weight * x.x[e];
    sum.x[e] = starts ? term : sum.x[e] + term;
  }
}

// A block per row. Its first warp makes the weights; the others need only pre of them, so they add the
// streams, which they have loaded before, while the first one still balances C: some 4,000 dependent cycles.
template <class Params, bool aligned>
__global__ void __launch_bounds__(1024) ReduceKernel(const __grid_constant__ ReduceParams<Params> p) {
  GridDependencySync();
  ReduceShared& shared = SharedStorage<ReduceShared>();
  const Params& op = p.op;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  const int32_t outputs = WeightsOf(op).cols, width = op.out.cols, count = op.stream_count;
  const float* const streams = op.streams.row(r);
  HeldStreams<aligned> held;
  held.Load(streams, count, 4 * thread, width);
  // The last threads, which have no output to sum, load these now and store them once they have arrived.
  const int32_t from_end = threads - 1 - thread;
  const float own_base = from_end < outputs ? op.base[from_end] : 0.0f;
  const float own_scale = from_end < ScalesOf(op) ? op.scale[from_end] : 0.0f;
  AddPartials(p.partials + static_cast<int64_t>(r) * p.chunks * (outputs + 1), p.chunks, outputs + 1, shared);
  if (from_end < outputs) shared.base[from_end] = own_base;
  if (from_end < ScalesOf(op)) shared.scale[from_end] = own_scale;
  for (int32_t i = from_end + threads; i < outputs; i += threads) shared.base[i] = op.base[i];
  __syncthreads();
  if (thread < 32) {
    const float mean = shared.weights[outputs] / static_cast<float>(op.streams.cols);
    MakeWeights(op, 1.0f / __fsqrt_rn(mean + op.norm_eps), shared, thread);
  }
  __syncthreads();
  if (thread < 32) {
    Balance(op, shared, thread);
    for (int32_t i = thread; i < outputs; i += 32) WeightsOf(op).row(r)[i] = shared.weights[i];
  }
  for (int32_t first = 4 * thread; first < width; first += 4 * threads) {
    Vec4 sum;
    if (count <= kHeldStreams) {
#pragma unroll
      for (int i = 0; i < kHeldStreams; ++i) {
        if (i < count) AddStream(sum, shared.weights[i], held.x[i], i == 0);
      }
      held.Load(streams, count, first + 4 * threads, width);
    } else {
      for (int32_t i = 0; i < count; ++i) {
        AddStream(sum, shared.weights[i], LoadVec4<aligned>(streams + i * width, first, width), i == 0);
      }
    }
    StoreVec4<aligned>(op.out.row(r), first, width, sum);
  }
}

// Whether the vector loads of one stream are aligned.
template <class T>
bool AreStreamsAligned(const Matrix<T>& streams, int32_t width) {
  return IsVec4Aligned(streams.data, streams.stride, width);
}

template <class Params>
void Reduce(Stream& stream, const Params& p) {
  const int32_t outputs = WeightsOf(p).cols, width = p.out.cols;
  CHECK_LE(p.stream_count, kMaxStreams);
  CHECK_EQ(p.streams.cols, p.stream_count * width);
  if (p.out.rows == 0) return;
  const int32_t chunks = (p.streams.cols + kChunk - 1) / kChunk;
  const size_t partials = size_t(p.out.rows) * chunks * (outputs + 1);
  const ProductsParams products = {
      .partials = static_cast<float*>(static_cast<CudaStream&>(stream).Scratch(partials * sizeof(float))),
      .streams = p.streams,
      .fn = p.fn,
      .outputs = outputs};
  const int32_t groups = (outputs + kTileOutputs - 1) / kTileOutputs;
  const bool loads_aligned = IsVec4Aligned(p.streams) && IsVec4Aligned(p.fn, p.streams.cols, p.streams.cols);
  Launch(stream, loads_aligned ? ProductsKernel<true> : ProductsKernel<false>,
         {.grid = dim3((p.out.rows + kTileRows - 1) / kTileRows, chunks),
          .block = dim3(32 * std::min(groups, kProductWarps))},
         products);
  const bool aligned = AreStreamsAligned(p.streams, width) && IsVec4Aligned(p.out);
  const int32_t warps = std::clamp((width + 4 * 32 - 1) / (4 * 32), 1, 32);
  Launch(stream, aligned ? ReduceKernel<Params, true> : ReduceKernel<Params, false>,
         {.grid = dim3(p.out.rows), .block = dim3(32 * warps), .shared_bytes = sizeof(ReduceShared)},
         ReduceParams<Params>{.op = p, .partials = products.partials, .chunks = chunks});
}

// ---- element by element ----

// A thread has four columns of every stream, of at most `most` streams.
template <bool aligned, int most>
__global__ void __launch_bounds__(kVec4Threads) HyperPostKernel(const __grid_constant__ HyperPostParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t n = p.stream_count, width = p.x.cols;
  const int32_t first = FirstColumnOfThread();
  if (first >= width) return;
  const float* const post = p.mix.row(r) + n;
  const float* const c = post + n;
  float* const streams = p.streams.row(r);
  const Vec4 x = LoadVec4<aligned>(p.x.row(r), first, width);
  Vec4 old[most];
#pragma unroll
  for (int j = 0; j < most; ++j) {
    if (j < n) old[j] = LoadVec4<aligned>(static_cast<const float*>(streams + j * width), first, width);
  }
  for (int32_t k = 0; k < n; ++k) {
    Vec4 sum;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.x[e] = post[k] * x.x[e];
#pragma unroll
    for (int j = 0; j < most; ++j) {
      if (j >= n) continue;
      const float weight = c[j * n + k];
#pragma unroll
      for (int e = 0; e < 4; ++e) sum.x[e] += weight * old[j].x[e];
    }
    StoreVec4<aligned>(streams + k * width, first, width, sum);
  }
}

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads)
    BroadcastStreamsKernel(const __grid_constant__ BroadcastStreamsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x), width = p.x.cols;
  const int32_t first = FirstColumnOfThread();
  if (first >= width || (p.add != 0 && p.index.positions[r] == p.skip_position)) return;
  const Vec4 x = LoadVec4<aligned>(p.x.row(r), first, width);
  for (int32_t i = 0; i < p.stream_count; ++i) {
    float* const stream = p.streams.row(r) + i * width;
    Vec4 sum = x;
    if (p.add != 0) {
      sum = LoadVec4<aligned>(static_cast<const float*>(stream), first, width);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum.x[e] += x.x[e];
    }
    StoreVec4<aligned>(stream, first, width, sum);
  }
}

}  // namespace

void HyperPre(Stream& stream, const HyperPreParams& p) {
  CHECK_GE(p.sinkhorn_iters, 1);
  CHECK_EQ(p.mix.cols, (2 + p.stream_count) * p.stream_count);
  Reduce(stream, p);
}

void HyperHead(Stream& stream, const HyperHeadParams& p) {
  CHECK_EQ(p.pre.cols, p.stream_count);
  Reduce(stream, p);
}

void HyperPost(Stream& stream, const HyperPostParams& p) {
  CHECK_LE(p.stream_count, kMaxStreams);
  const bool aligned = AreStreamsAligned(p.streams, p.x.cols) && IsVec4Aligned(p.x);
  const auto kernel =
      p.stream_count <= 4
          ? (aligned ? HyperPostKernel<true, 4> : HyperPostKernel<false, 4>)
          : (aligned ? HyperPostKernel<true, kMaxStreams> : HyperPostKernel<false, kMaxStreams>);
  Launch(stream, kernel, Vec4Grid(p.x.rows, p.x.cols), p);
}

void BroadcastStreams(Stream& stream, const BroadcastStreamsParams& p) {
  const bool aligned = AreStreamsAligned(p.streams, p.x.cols) && IsVec4Aligned(p.x);
  Launch(stream, aligned ? BroadcastStreamsKernel<true> : BroadcastStreamsKernel<false>,
         Vec4Grid(p.x.rows, p.x.cols), p);
}

}  // namespace foredraft::cuda
