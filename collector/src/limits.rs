//! Every limit of the collector, with its unit and its reason. Reaching one is counted and visible.
