"""Small programs in XLA's text format: loops with collectives."""

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

# One windowed matmul on eight TPUs, cut out of a step of ViT-S/16 with fsdp=8 (jax 0.10.2): the
# weights bf16[1,48,1152] of each TPU travel around in both directions. XLA has unrolled the loop:
# it counts to 4 by 2. Before it, an all-gather starts, which ends after it.
WINDOWED = """HloModule jit_step, is_scheduled=true

%begin (param_0: bf16[48,1000]) -> (bf16[48,1000], bf16[384,1000], s32[2], u32[]) {
  %param_0 = bf16[48,1000]{1,0} parameter(0)
  %gather.1 = bf16[384,1000]{1,0} all-gather(%param_0), channel_id=87, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, dimensions={0}, frontend_attributes={chain_id="0"}, metadata={op_name="jit(step_fn)/jvp()/dot_general"}
  ROOT %started = (bf16[48,1000]{1,0}, bf16[384,1000]{1,0}, s32[2]{0}, u32[]) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.682 (param_0.1: bf16[48,1000], param_1.1: bf16[1,48,1152]) -> (bf16[1,48,1152], bf16[384,1000]) {
  %param_1.1 = bf16[1,48,1152]{2,1,0} parameter(1)
  %param_0.1 = bf16[48,1000]{1,0} parameter(0)
  %gather.2 = bf16[384,1000]{1,0} all-gather(%param_0.1), channel_id=87, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %step = (bf16[1,48,1152]{2,1,0}, bf16[384,1000]{1,0}) tuple(%param_1.1, %gather.2)
}

%end (param_0.2: bf16[48,1000]) -> bf16[384,1000] {
  %param_0.2 = bf16[48,1000]{1,0} parameter(0)
  %gather.3 = bf16[384,1000]{1,0} all-gather(%param_0.2), channel_id=87, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %ended = bf16[384,1000]{1,0} custom-call(%gather.3), custom_call_target="AsyncCollectiveDone"
}

%windowed_dot_general_body (wide: (bf16[1,48,1152], bf16[1,48,1152], u32[], bf16[48,1000])) -> (bf16[1,48,1152], bf16[1,48,1152], u32[], bf16[48,1000]) {
  %wide = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], bf16[48,1000]{1,0}) parameter(0)
  %two = u32[] constant(2)
  %left = bf16[1,48,1152]{2,1,0} get-tuple-element(%wide), index=0
  %right = bf16[1,48,1152]{2,1,0} get-tuple-element(%wide), index=1
  %count = u32[] get-tuple-element(%wide), index=2
  %sent = bf16[48,1000]{1,0} get-tuple-element(%wide), index=3
  %permute.1 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], u32[]) collective-permute-start(%left), channel_id=3, source_target_pairs={{0,7},{1,0},{2,1},{3,2},{4,3},{5,4},{6,5},{7,6}}
  %done.1 = bf16[1,48,1152]{2,1,0} collective-permute-done(%permute.1)
  %permute.2 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], u32[]) collective-permute-start(%right), channel_id=4, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}
  %done.2 = bf16[1,48,1152]{2,1,0} collective-permute-done(%permute.2)
  %multiplied = (bf16[1,48,1152]{2,1,0}, bf16[384,1000]{1,0}) fusion(%sent, %done.1), kind=kCustom, calls=%async_collective_fusion.682
  %permute.3 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], u32[]) collective-permute-start(%done.1), channel_id=5, source_target_pairs={{0,7},{1,0},{2,1},{3,2},{4,3},{5,4},{6,5},{7,6}}
  %done.3 = bf16[1,48,1152]{2,1,0} collective-permute-done(%permute.3)
  %permute.4 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], u32[]) collective-permute-start(%done.2), channel_id=6, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}
  %done.4 = bf16[1,48,1152]{2,1,0} collective-permute-done(%permute.4)
  %count.1 = u32[] add(%count, %two)
  ROOT %out = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], bf16[48,1000]{1,0}) tuple(%done.3, %done.4, %count.1, %sent)
}

%windowed_dot_general_cond (wide.1: (bf16[1,48,1152], bf16[1,48,1152], u32[], bf16[48,1000])) -> pred[] {
  %four = u32[] constant(4)
  %wide.1 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], bf16[48,1000]{1,0}) parameter(0)
  %count.2 = u32[] get-tuple-element(%wide.1), index=2
  ROOT %less = pred[] compare(%count.2, %four), direction=LT
}

ENTRY %main (p: bf16[1,48,1152], q: bf16[48,1000]) -> bf16[384,1000] {
  %p = bf16[1,48,1152]{2,1,0} parameter(0)
  %q = bf16[48,1000]{1,0} parameter(1)
  %zero = u32[] constant(0)
  %start = u32[] copy(%zero)
  %begun = (bf16[48,1000]{1,0}, bf16[384,1000]{1,0}, s32[2]{0}, u32[]) fusion(%q), kind=kCustom, calls=%begin
  %permute = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], u32[]) collective-permute-start(%p), channel_id=2, source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}
  %done = bf16[1,48,1152]{2,1,0} collective-permute-done(%permute)
  %first = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], bf16[48,1000]{1,0}) tuple(%p, %done, %start, %q)
  %while.1 = (bf16[1,48,1152]{2,1,0}, bf16[1,48,1152]{2,1,0}, u32[], bf16[48,1000]{1,0}) while(%first), condition=%windowed_dot_general_cond, body=%windowed_dot_general_body
  ROOT %whole = bf16[384,1000]{1,0} fusion(%q), kind=kCustom, calls=%end
}
"""  # noqa: E501
