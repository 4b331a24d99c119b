"""A small program in XLA's text format: a loop of 24 iterations with a collective."""

LOOP = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[1024,256]{1,0})->(f32[1024,256]{1,0}, f32[])}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%sliced (p0: bf16[24,512,256], p1: s32[]) -> bf16[512,256] {
  %p0 = bf16[24,512,256]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = bf16[1,512,256]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,512,256}
  ROOT %flat = bf16[512,256]{1,0} bitcast(%slice)
}

%kept (k0: bf16[24,512,256], k1: s32[], k2: bf16[512,256]) -> bf16[24,512,256] {
  %k0 = bf16[24,512,256]{2,1,0} parameter(0)
  %k1 = s32[] parameter(1)
  %k2 = bf16[512,256]{1,0} parameter(2)
  %one = bf16[1,512,256]{2,1,0} bitcast(%k2)
  %none = s32[] constant(0)
  ROOT %update = bf16[24,512,256]{2,1,0} dynamic-update-slice(%k0, %one, %k1, %none, %none)
}

%body (state: (s32[], bf16[24,512,256], bf16[24,512,256])) -> (s32[], bf16[24,512,256], bf16[24,512,256]) {
  %state = (s32[], bf16[24,512,256]{2,1,0}, /*index=2*/bf16[24,512,256]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %weights = bf16[24,512,256]{2,1,0} get-tuple-element(%state), index=1
  %outputs = bf16[24,512,256]{2,1,0} get-tuple-element(%state), index=2
  %layer = bf16[512,256]{1,0} fusion(%weights, %i), kind=kLoop, calls=%sliced, metadata={op_name="jit(step)/jvp()/while/body/dynamic_slice"}
  %whole = bf16[512,256]{1,0} all-reduce(%layer), channel_id=7, replica_groups=[2,8]<=[16], use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(step)/transpose(jvp())/while/body/dot_general"}
  %next = bf16[24,512,256]{2,1,0} fusion(%outputs, %i, %whole), kind=kLoop, calls=%kept
  %one.1 = s32[] constant(1)
  %i.1 = s32[] add(%i, %one.1)
  ROOT %out = (s32[], bf16[24,512,256]{2,1,0}, bf16[24,512,256]{2,1,0}) tuple(%i.1, %weights, %next)
}

%condition (state.1: (s32[], bf16[24,512,256], bf16[24,512,256])) -> pred[] {
  %state.1 = (s32[], bf16[24,512,256]{2,1,0}, bf16[24,512,256]{2,1,0}) parameter(0)
  %turns = s32[] constant(24)
  %i.2 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%i.2, %turns), direction=LT
}

ENTRY %main (p: f32[1024,256]) -> (f32[1024,256], f32[]) {
  %p = f32[1024,256]{1,0:T(8,128)} parameter(0)
  %start = s32[] constant(0)
  %cast = bf16[24,512,256]{2,1,0} custom-call(%p), custom_call_target="toy"
  %space = bf16[24,512,256]{2,1,0} custom-call(), custom_call_target="AllocateBuffer"
  %first = (s32[], bf16[24,512,256]{2,1,0}, bf16[24,512,256]{2,1,0}) tuple(%start, %cast, %space)
  %loop = (s32[], bf16[24,512,256]{2,1,0}, bf16[24,512,256]{2,1,0}) while(%first), condition=%condition, body=%body
  %result = bf16[24,512,256]{2,1,0} get-tuple-element(%loop), index=2
  %new = f32[1024,256]{1,0:T(8,128)} custom-call(%result, %p), custom_call_target="toy", metadata={op_name="jit(step)/add"}
  %near = f32[1024,256]{1,0:T(8,128)S(1)} copy(%new)
  %total = f32[] custom-call(%near), custom_call_target="toy"
  ROOT %both = (f32[1024,256]{1,0:T(8,128)}, f32[]) tuple(%new, %total)
}
"""  # noqa: E501
# Bytes of one layer, bf16[512,256], and of the argument, f32[1024,256].
LAYER = 512 * 256 * 2
ARGUMENT = 1024 * 256 * 4
