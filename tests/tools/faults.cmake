# Writes a copy of a product source with the faults that `foredraft validate-mtp` has to find. Each is there only while
# present_fault (tests/tools/faults.h) has its name. The copy is linked in the place of the product's own object.
#
# cmake -D SOURCE=engine/... -D FROM=<the file> -D TO=<the copy> -P faults.cmake

file(READ "${FROM}" text)

# fault(NAME SOURCE ORIGINAL REPLACEMENT): ORIGINAL stands in SOURCE once. FAULT in REPLACEMENT: whether the fault is there.
function(fault NAME FILE ORIGINAL REPLACEMENT)
  if(NOT FILE STREQUAL SOURCE)
    return()
  endif()
  string(FIND "${text}" "${ORIGINAL}" first)
  string(FIND "${text}" "${ORIGINAL}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "${SOURCE}: does not have once what tests/tools/faults.cmake replaces: ${ORIGINAL}")
  endif()
  string(REPLACE FAULT "HasFault(\"${NAME}\")" replacement "${REPLACEMENT}")
  string(REPLACE "${ORIGINAL}" "${replacement}" replaced "${text}")
  set(text "${replaced}" PARENT_SCOPE)
endfunction()

set(eagle engine/spec/recycling_drafter.cc)
fault("recycled output" ${eagle} [=[m_.Recycle(step, input, last_output, output);]=]
      [=[m_.Recycle(step, input, FAULT ? input.target_output.first_rows(input.bucket) : last_output, output);]=])
fault("recycled position" ${eagle} [=[.draft_index = draft - 1});]=] [=[.draft_index = draft - (FAULT ? 2 : 1)});]=])
fault("no rows without drafts" ${eagle} [=[const Ops& ops = step.ops();]=]
      [=[if (draft_count == 0 && FAULT) return;
  const Ops& ops = step.ops();]=])

set(picker engine/spec/draft_picker.cc)
fault("noise of the first draft" ${picker} [=[.draft_index = draft_index - 1});]=]
      [=[.draft_index = FAULT ? 0 : draft_index - 1});]=])
fault("drafts that are not counted" ${picker} [=[.stored_drafts = draft_index - 1,]=]
      [=[.stored_drafts = FAULT ? 0 : draft_index - 1,]=])

fault("lost boundary" engine/spec/mtp_modules.cc [=[if (span.first_position == 0) continue;]=]
      [=[if (span.first_position == 0 || FAULT) continue;]=])

set(v3_layer engine/model/deepseek_v3/v3_layer.cc)
fault("halves of eh_proj" ${v3_layer} [=[input.as_bf16.columns(0, width)]=]
      [=[input.as_bf16.columns(FAULT ? width : 0, width)]=])
fault("halves of eh_proj" ${v3_layer} [=[input.as_bf16.columns(width, width)]=]
      [=[input.as_bf16.columns(FAULT ? 0 : width, width)]=])

set(head engine/spec/eagle3/eagle3_head.cc)
fault("taps one layer off" ${head} [=[head_->taps.end(), layer);]=] [=[head_->taps.end(), layer - (FAULT ? 1 : 0));]=])
fault("taps in another order" ${head} [=[columns(index * width, width);
  if]=] [=[columns((FAULT ? head_->taps.size() - 1 - index : index) * width, width);
  if]=])
fault("a norm of taps left out" ${head} [=[} else if (head_->fc_norm) {]=] [=[} else if (head_->fc_norm && !FAULT) {]=])
fault("the norm over taps left out" ${head} [=[if (head_->norm_before_fc) {
    ops_.rms_norm]=] [=[if (FAULT) {
    ops_.to_bf16_rows(stream, {.out = taps, .x = unnormed_taps_.first_rows(out.rows)});
  } else if (head_->norm_before_fc) {
    ops_.rms_norm]=])
fault("halves of x" ${head} [=[input.as_bf16.columns(0, width)]=] [=[input.as_bf16.columns(FAULT ? width : 0, width)]=])
fault("halves of x" ${head} [=[input.as_bf16.columns(width, width)]=]
      [=[input.as_bf16.columns(FAULT ? 0 : width, width)]=])
fault("norms of the halves" ${head} [=[.weight = w.input_layernorm,]=]
      [=[.weight = FAULT ? w.hidden_norm : w.input_layernorm,]=])
fault("norms of the halves" ${head} [=[.weight = w.hidden_norm,]=]
      [=[.weight = FAULT ? w.input_layernorm : w.hidden_norm,]=])
fault("residual of the other kind" ${head} [=[.out = head_->norm_before_residual ? hidden : Matrix<float>(),]=]
      [=[.out = head_->norm_before_residual != FAULT ? hidden : Matrix<float>(),]=])
fault("residual of the other kind" ${head} [=[if (!head_->norm_before_residual) {]=]
      [=[if (head_->norm_before_residual == FAULT) {]=])
fault("recycled rows normed or not" ${head} [=[if (head_->norm_output) {
    return RmsNormOfHidden]=] [=[if (head_->norm_output != FAULT) {
    return RmsNormOfHidden]=])
fault("the target's theta" ${head} [=[layer.rope_theta,]=] [=[FAULT ? target_.config().rope_theta : layer.rope_theta,]=])
fault("mscale's quotient" ${head} [=[RopeMscale(layer.rope_scaling)]=] [=[FAULT ? 1 : RopeMscale(layer.rope_scaling)]=])
fault("the target's head" ${head} [=[if (!head_->own_lm_head) {]=] [=[if (!head_->own_lm_head || FAULT) {]=])
fault("no norm before the head" ${head} [=[ops_.rms_norm(stream, {.out_bf16 = input, .x = outputs, .weight = weights_.norm, .eps = eps});]=]
      [=[FAULT ? ops_.to_bf16_rows(stream, {.out = input, .x = outputs})
          : ops_.rms_norm(stream, {.out_bf16 = input, .x = outputs, .weight = weights_.norm, .eps = eps});]=])

set(indexer engine/model/deepseek_v3/sparse_indexer.cc)
fault("bias of the indexer's keys" ${indexer} [=[.norm_bias = w.k_norm_bias,]=]
      [=[.norm_bias = FAULT ? w.k_norm : w.k_norm_bias,]=])
fault("weights of the indexer's heads" ${indexer} [=[.columns(width, heads),]=] [=[.columns(FAULT ? 0 : width, heads),]=])
fault("lists that are not shared" engine/model/deepseek_v3/deepseek_v3.cc [=[batch.list_rows != nullptr]=]
      [=[batch.list_rows != nullptr && !FAULT]=])

set(dspark engine/spec/dspark/dspark_drafter.cc)
fault("row k of the block" ${dspark} [=[{streams_.row(draft), bucket,]=]
      [=[{streams_.row(FAULT && draft + 1 < block_rows_ ? draft + 1 : draft), bucket,]=])
fault("Markov head behind the anchor" ${dspark} [=[draft == 1 ? anchor_ids_]=] [=[draft == 1 || FAULT ? anchor_ids_]=])
fault("noise id" ${dspark} [=[.noise_id = noise_id_});]=] [=[.noise_id = FAULT ? noise_id_ - 1 : noise_id_});]=])
fault("no last stage" ${dspark} [=[stage < stage_count_;]=] [=[stage < stage_count_ - (FAULT ? 1 : 0);]=])

set(stages engine/model/deepseek_v4/dspark_stages.cc)
fault("main_norm" ${stages} [=[.weight = w.main_norm,]=] [=[.weight = FAULT ? w.norm : w.main_norm,]=])
fault("stage 0's wkv for all stages" ${stages} [=[w.stages[i].attn, stages[i],]=]
      [=[w.stages[FAULT ? 0 : i].attn, stages[i],]=])
fault("keys of all stages but the last" ${stages} [=[i < stages.size();]=] [=[i + (FAULT ? 1 : 0) < stages.size();]=])
fault("taps of other layers" ${stages} [=[std::find(tapped.begin(), tapped.end(), layer);]=]
      [=[std::find(tapped.begin(), tapped.end(), FAULT ? layer ^ 1 : layer);]=])

file(WRITE "${TO}" "#include \"tests/tools/faults.h\"\n${text}")
