//! Tollgate's gRPC protocol, and the part of Envoy's that it speaks.
//!
//! Everything here is made of the files under `proto/`: messages, clients and servers.

/// Every message and service, in the form that gRPC reflection serves.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// `tollgate.v1`: the decision service.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("tollgate.v1");
}

/// The part of Envoy's protocol that Tollgate speaks; names are Envoy's.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated, and named by Envoy")]
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}
