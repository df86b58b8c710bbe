#!/usr/bin/env bash
# names.sh ROOT: no source uses a name that docs/style.md replaced by the field's word, in its text or as its file name.
set -euo pipefail
cd "$1"
. "${BASH_SOURCE[0]%/*}/sources.sh"
old=(
  # GEMM, wgmma and TMA
  overlapped_gemm gated_gemm logits_gemm gemm_epilogue tile_product begin_products add_products commit_products
  wait_products load_box load_box_for_all add_box publish_writes more_registers launch_early wait_for_last let_next_start
  line_barrier join_parts fast_sums kRowsOfA ProductChoices product_choices
  # attention and recurrent kernels
  MaxSum max_sum attention_simple AttentionNotes attention_notes delta_mma_keys AttentionPlace
  # autograd and steps
  RecordedPasses recorded_passes RecordedOps begin_recording Rederive rederive GradSink add_to_sink with_dense_rows
  narrow_gradients AheadTokens ahead_losses PredictionLayer prediction_layer FinalStage final_stage
  RankModel rank_model run_stages
  # parallelism and communication
  StateShare state_share shared_keys pipeline_picture NcclWatch NcclChannel NcclRecording gather_texts CarriedStates
  carried_states ExpertChoice expert_choice choice_map BalancingUnits attach_loss
  # configuration and checkpoints
  Objection ForeignSetting foreign_settings copy_in StoredPiece rewrite_checkpoint
)
pattern=$(IFS='|'; echo "${old[*]}")
faults=0
if sources . | grep -nE "/($pattern)\.(h|cpp|cu|cuh)$"; then faults=1; fi
if sources . | xargs -r -d '\n' grep -nwE "$pattern"; then faults=1; fi
[[ $faults -eq 0 ]] || { echo "docs/style.md has the field's words for these names"; exit 1; }
echo "${#old[@]} old names are gone"
