//! Counters in Redis: single server, Sentinel or Cluster.
