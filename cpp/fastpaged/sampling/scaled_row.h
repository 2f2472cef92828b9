// ScaledRow: a row of logits under a temperature.
#pragma once

#include "fastpaged/sampling/lanes.h"
#include "fastpaged/sampling/logit_row.h"
#include "fastpaged/sampling/row_scan.h"

namespace fastpaged {

// REQUIRES: scan is of these logits, without NaN and with a finite maximum; temperature > 0 and finite.
struct ScaledRow {
  const LogitRow& logits;
  const RowScan& scan;
  float temperature;

  // (logit - max) / temperature: 0 for the best token, below 0 for others, never NaN. Monotone in the logit.
  [[nodiscard]] float scaled(float logit) const { return (logit - scan.max) / temperature; }
  [[nodiscard]] Lanes scaled(const Lanes& values) const { return (values - scan.max) / temperature; }
};

}  // namespace fastpaged
