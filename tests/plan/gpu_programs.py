"""Programs in the text format of XLA's GPU compiler, shortened."""

# A matmul, the same with a bias, and attention: cuBLAS's and cuDNN's workspaces are their last
# results. `%step` is a command buffer. The dynamic-slice fusion multiplies one layer of a stack.
LIBRARIES = """HloModule jit_step, is_scheduled=true

%sliced (w: bf16[12,512,256], i: s32[], x: bf16[1024,512]) -> (bf16[1024,256], s8[4194304]) {
  %w = bf16[12,512,256]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = bf16[1024,512]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %one = bf16[1,512,256]{2,1,0} dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={1,512,256}
  %flat = bf16[512,256]{1,0} bitcast(%one)
  %both = (bf16[1024,256]{1,0}, s8[4194304]{0}) custom-call(%x, %flat), custom_call_target="__cublas$gemm"
  %product = bf16[1024,256]{1,0} get-tuple-element(%both), index=0
  %space = s8[4194304]{0} get-tuple-element(%both), index=1
  ROOT %out = (bf16[1024,256]{1,0}, s8[4194304]{0}) tuple(%product, %space)
}

%step (a: bf16[1024,512], b: bf16[512,256]) -> bf16[1024,256] {
  %a = bf16[1024,512]{1,0} parameter(0)
  %b = bf16[512,256]{1,0} parameter(1)
  %plain = (bf16[1024,256]{1,0}, s8[33554432]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(step)/dot_general"}
  ROOT %result = bf16[1024,256]{1,0} get-tuple-element(%plain), index=0
}

ENTRY %main (a.1: bf16[1024,512], b.1: bf16[512,256], c: bf16[256], q: bf16[8,200,6,64], w.1: bf16[12,512,256], i.1: s32[]) -> bf16[1024,256] {
  %a.1 = bf16[1024,512]{1,0} parameter(0)
  %b.1 = bf16[512,256]{1,0} parameter(1)
  %c = bf16[256]{0} parameter(2)
  %q = bf16[8,200,6,64]{3,2,1,0} parameter(3)
  %w.1 = bf16[12,512,256]{2,1,0} parameter(4)
  %i.1 = s32[] parameter(5)
  %call = bf16[1024,256]{1,0} call(%a.1, %b.1), to_apply=%step
  %biased = (bf16[1024,256]{1,0}, s8[33554432]{0}) custom-call(%a.1, %b.1, %c), custom_call_target="__cublas$lt$matmul"
  %attended = (bf16[8,6,200,64]{3,1,2,0}, f32[8,6,200]{2,1,0}, u8[4096]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"
  %fused = (bf16[1024,256]{1,0}, s8[4194304]{0}) fusion(%w.1, %i.1, %a.1), kind=kCustom, calls=%sliced
  ROOT %product.1 = bf16[1024,256]{1,0} get-tuple-element(%fused), index=0
}
"""  # noqa: E501
