//! Tollgate as a service.
