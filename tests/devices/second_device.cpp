// A second device for the tests: real numbers under another device name, which refuses to mix with the CPU.
//
// Its memory is host memory and its kernels are those of the CPU. What is different is what a program can get wrong
// on an accelerator: a tensor belongs to one device, an operator takes tensors and generators of one device only, the
// device has a random state of its own, and reading a number makes the program wait for the device (counted here).

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_thnn_differentiable_lstm_cell_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType);  // its own header would double the time to compile
}

namespace {

const c10::Device the_device(c10::DeviceType::PrivateUse1, 0);
const c10::Device the_host(c10::DeviceType::CPU);
std::atomic<int64_t> waits{0};
std::atomic<bool> available{false}, waits_refused{false};

void wait_for_the_device(const std::string& why) {
  waits++;
  TORCH_CHECK(!waits_refused, why, ": the program waits for ", the_device);
}

// ---- memory -------------------------------------------------------------------------------------------------------

struct SecondAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {data, data, &c10::free_cpu, the_device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

SecondAllocator the_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator)

// The same memory as a storage of another device. It keeps the first storage alive.
c10::Storage relabelled(const c10::Storage& storage, c10::Device device, c10::Allocator* allocator) {
  auto* owner = new c10::Storage(storage);
  auto release = [](void* owner) { delete static_cast<c10::Storage*>(owner); };
  c10::DataPtr data(storage.mutable_data(), owner, release, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, true);
}

// A tensor of the same shape, strides and numbers in `storage`, which is the relabelled storage of `like`.
at::Tensor tensor_in(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto copy = c10::Storage(storage);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(copy), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return tensor;
}

// ---- random numbers -----------------------------------------------------------------------------------------------

struct SecondGenerator final : c10::GeneratorImpl {
  explicit SecondGenerator(at::Generator host)
      : GeneratorImpl(the_device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  SecondGenerator* clone_impl() const override { return new SecondGenerator(host.clone()); }

  at::Generator host;
};

at::Generator new_generator() {
  return at::make_generator<SecondGenerator>(at::detail::createCPUGenerator());
}

const at::Generator& default_generator() {
  static const at::Generator generator = new_generator();
  return generator;
}

at::Generator host_of(const at::Generator& generator) {
  return generator.get<SecondGenerator>()->host;
}

// While it lives, the CPU's random state is that of the device: for operators that take no generator.
class DeviceRandomState {
 public:
  DeviceRandomState() : lock_(mutex()), host_(at::detail::getDefaultCPUGenerator()), before_(host_.get_state()) {
    host_.set_state(host_of(default_generator()).get_state());
  }
  ~DeviceRandomState() {
    host_of(default_generator()).set_state(host_.get_state());
    host_.set_state(before_);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
  at::Generator host_;
  at::Tensor before_;
};

// ---- running an operator of the CPU on the device's memory ----------------------------------------------------------

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {}

  void run(torch::jit::Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const auto first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); i++) {
      const auto* alias = arguments[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      enter((*stack)[first + i], written);
    }
    refuse_a_mix();
    if (op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape)) {
      wait_for_the_device(c10::toString(op_.operator_name()));
    }
    call(stack);
    write_back();
    const auto results = op_.schema().returns().size();
    for (size_t i = stack->size() - results; i < stack->size(); i++) leave((*stack)[i]);
  }

 private:
  struct Pair {
    at::Tensor device, host;
  };
  struct StoragePair {
    c10::Storage device, host;
  };

  void call(torch::jit::Stack* stack) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (op_.hasTag(at::Tag::nondeterministic_seeded) && !has_generator_) {
      DeviceRandomState state;
      op_.callBoxed(stack);
    } else {
      op_.callBoxed(stack);
    }
  }

  void enter(c10::IValue& value, bool written) {
    if (value.isTensor()) {
      value = enter(value.toTensor(), !written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(enter(tensor, false));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor.has_value() ? std::optional<at::Tensor>(enter(*tensor, false)) : std::nullopt);
      }
      value = list;
    } else if (value.isGenerator()) {
      has_generator_ = true;
      enter_generator(value);
    } else if (value.isDevice() && value.toDevice().type() == the_device.type()) {
      value = the_host;
    }
  }

  // `scalar_allowed`: an accelerator takes a number, held by a CPU tensor without dimensions, as an argument.
  at::Tensor enter(const at::Tensor& tensor, bool scalar_allowed) {
    if (!tensor.defined()) return tensor;
    if (tensor.device() != the_device) {
      const bool scalar = tensor.device() == the_host && tensor.dim() == 0;
      if (!(scalar && scalar_allowed) && !foreign_.defined()) foreign_ = tensor;
      return tensor;
    }
    seen_device_ = true;
    for (const Pair& pair : tensors_) {
      if (pair.device.is_same(tensor)) return pair.host;
    }
    tensors_.push_back({tensor, tensor_in(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor)});
    return tensors_.back().host;
  }

  void enter_generator(c10::IValue& value) {
    const auto generator = value.toGenerator();
    if (generator.device() == the_device) {
      seen_device_ = true;
      value = host_of(generator);
    } else {
      foreign_generator_ = true;
    }
  }

  void refuse_a_mix() const {
    if (!seen_device_) return;
    const auto name = c10::toString(op_.operator_name());
    TORCH_CHECK(!foreign_generator_, name, ": a generator of the CPU among tensors of ", the_device);
    TORCH_CHECK(
        !foreign_.defined(), name, ": a tensor of ", foreign_.device(), " with shape ", foreign_.sizes(),
        " among tensors of ", the_device);
  }

  const c10::Storage& host_storage(const c10::Storage& storage) {
    for (const StoragePair& pair : storages_) {
      if (pair.device.is_alias_of(storage)) return pair.host;
    }
    storages_.push_back({storage, relabelled(storage, the_host, c10::GetCPUAllocator())});
    return storages_.back().host;
  }

  const c10::Storage& device_storage(const c10::Storage& host) {
    for (const StoragePair& pair : storages_) {
      if (pair.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return pair.device;
    }
    storages_.push_back({relabelled(host, the_device, &the_allocator), host});
    return storages_.back().device;
  }

  // An operator with `out` may have given a tensor another shape, and other memory to hold it.
  void write_back() {
    for (const StoragePair& pair : storages_) {
      if (pair.host.data() == pair.device.data()) continue;
      auto moved = relabelled(pair.host, the_device, &the_allocator);
      pair.device.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(moved.mutable_data_ptr()));
      pair.device.set_nbytes(pair.host.nbytes());
    }
    for (const Pair& pair : tensors_) {
      if (pair.host.sizes() == pair.device.sizes() && pair.host.strides() == pair.device.strides()) continue;
      pair.device.unsafeGetTensorImpl()->set_sizes_and_strides(
          pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
    }
  }

  void leave(c10::IValue& value) {
    if (value.isTensor()) {
      value = leave(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(leave(tensor));
      value = list;
    }
  }

  // What was given comes back as itself, a view of it as a view, and everything else as a new tensor of the device.
  at::Tensor leave(at::Tensor tensor) {
    if (!tensor.defined() || tensor.device() != the_host) return tensor;
    for (const Pair& pair : tensors_) {
      if (pair.host.is_same(tensor)) return pair.device;
    }
    if (tensor._is_zerotensor()) tensor = at::zeros(tensor.sizes(), tensor.options());
    return tensor_in(device_storage(tensor.storage()), c10::DispatchKey::PrivateUse1, tensor);
  }

  const c10::OperatorHandle& op_;
  std::vector<Pair> tensors_;
  std::vector<StoragePair> storages_;
  at::Tensor foreign_;
  bool foreign_generator_ = false, seen_device_ = false, has_generator_ = false;
};

void run_on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op).run(stack);
}

// ---- operators that the CPU does not have, or that concern two devices -----------------------------------------------

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device() != the_device) return tensor;
  return tensor_in(relabelled(tensor.storage(), the_host, c10::GetCPUAllocator()), c10::DispatchKey::CPU, tensor);
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &the_allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &the_allocator, keys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.device() == the_host && !non_blocking) wait_for_the_device("a copy to the CPU");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& set_storage_part(
    at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(storage.device() == the_device, "set_: a storage of ", storage.device(), " for a tensor of ", the_device);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(size, stride, offset);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage_part(self, std::move(storage), 0, {count}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& from) {
  return set_storage_part(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}

// Accelerators fuse the gates of an LSTM, gates = W x + V h: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c').
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  auto gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias && hidden_bias->defined()) gates = gates + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  const auto next = at::sigmoid(parts[1]) * cell + at::sigmoid(parts[0]) * at::tanh(parts[2]);
  return {at::sigmoid(parts[3]) * at::tanh(next), next, gates};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_cell, const at::Tensor& cell,
    const at::Tensor& next_cell, const at::Tensor& gates, bool has_bias) {
  const bool any = (grad_hidden && grad_hidden->defined()) || (grad_cell && grad_cell->defined());
  if (!any) return {};
  const auto parts = at::_thnn_differentiable_lstm_cell_backward(
      grad_hidden, grad_cell, gates, at::zeros_like(gates), std::nullopt, std::nullopt, cell, next_cell);
  const auto grad_gates = std::get<0>(parts);
  return {grad_gates, std::get<2>(parts), has_bias ? grad_gates.sum(0) : at::Tensor()};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_the_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage_part);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  // These ask which device they are on, and know of no second one: the CPU's answer is taken instead.
  for (const char* name : {"convolution", "convolution_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_the_host>());
  }
}

// ---- autocast -------------------------------------------------------------------------------------------------------

template <bool lower>
void cast_and_run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto dtype = lower ? at::autocast::get_autocast_dtype(the_device.type()) : at::kFloat;
  const auto count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (!value.isTensor()) continue;
    const auto& tensor = value.toTensor();
    const bool eligible = tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
    if (eligible && tensor.device() == the_device) value = tensor.to(dtype);
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  for (const char* name : {"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "conv1d", "conv2d", "conv3d",
                           "scaled_dot_product_attention"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_run<true>>());
  }
  for (const char* name : {"softmax.int", "log_softmax.int", "nll_loss", "cross_entropy_loss", "mse_loss", "layer_norm",
                           "binary_cross_entropy_with_logits", "exp", "log", "logsumexp", "sum", "softplus"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&cast_and_run<false>>());
  }
}

// ---- what torch asks of a device ------------------------------------------------------------------------------------

// All work is done when a call returns, so that streams and events have nothing to wait for.
struct SecondGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return the_device.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return the_device; }
  c10::Device getDevice() const override { return the_device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SecondGuard)

struct SecondHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return available; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return the_device; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = the_allocator.allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept) the_allocator.copy_data(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

SecondHooks the_hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&the_hooks), true);

TORCH_LIBRARY(second_device, library) {
  library.def("waits() -> int", []() -> int64_t { return waits; });
  library.def("refuse_waits(bool yes) -> ()", [](bool yes) { waits_refused = yes; });
  library.def("is_available() -> bool", []() -> bool { return available; });
  library.def("set_available(bool yes) -> ()", [](bool yes) { available = yes; });
  library.def("default_generator() -> Generator?", [] { return default_generator(); });
}

}  // namespace
