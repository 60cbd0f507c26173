"""Numbers about conversations; no models."""

from iterpo.measure.intervals import Interval
from iterpo.measure.returns import Measurement, ResultRecord, measure, result_record

__all__ = ["Interval", "Measurement", "ResultRecord", "measure", "result_record"]
