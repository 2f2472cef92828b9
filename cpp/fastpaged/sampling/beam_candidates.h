// BeamCandidates: one row of logits to the likeliest continuations of a beam. Holds scratch, reused from row to row.
//
// Log-softmax of the logits, divided by the temperature if that is above 0; then what the request wants changed
// (logit_edits.h), which here acts on logprobs; then the best of them. They are the logprobs that a beam sums up, and
// no distribution any more once edited.
#pragma once

#include <vector>

#include "fastpaged/request/sampling_params.h"
#include "fastpaged/sampling/logit_edits.h"
#include "fastpaged/sampling/row_scan.h"
#include "fastpaged/sampling/token_order.h"
#include "fastpaged/sampling/token_weights.h"

namespace fastpaged {

class BeamCandidates {
 public:
  // Assigns to `best` tokens and their logprobs, best first: as many as the search looks at, or the user wants to see;
  // none that is -inf, and so perhaps none at all. weights, edits: scratch. REQUIRES: scan is of this row, without NaN
  // and with a finite maximum; request.params.beam.
  void select(const LogitRow& row, const RowScan& scan, const SampleRequest& request, TokenWeights& weights,
              LogitEdits& edits, std::vector<RankedToken>& best);

 private:
  std::vector<float> logprobs_;  // [vocab_size]
  RowScan scan_;                 // of the edited ones
};

}  // namespace fastpaged
