//! Answers of gRPC calls, as far as they are looked at. Fields that are not named here are passed over
//! without being kept.

use prost::Message;

use crate::outcome::{Answer, Fault};
use crate::plan::Target;

#[derive(Clone, PartialEq, Eq, Message)]
struct Decision {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Decided {
    #[prost(message, optional, tag = "1")]
    decision: Option<Decision>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Batch {
    #[prost(message, repeated, tag = "1")]
    decisions: Vec<Decided>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Streamed {
    #[prost(message, repeated, tag = "2")]
    decisions: Vec<Decided>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Envoy {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

/// Envoy's code for "go on".
const ENVOY_OK: i32 = 1;

/// What a message says.
pub(crate) fn answer(target: Target, message: &[u8]) -> Result<Answer, Fault> {
    let read = match target {
        Target::GrpcBatch => Batch::decode(message).map(|it| count(&it.decisions)),
        Target::GrpcStream => Streamed::decode(message).map(|it| count(&it.decisions)),
        Target::Envoy => {
            Envoy::decode(message).map(|it| Answer::single(it.overall_code == ENVOY_OK))
        }
        _ => Decision::decode(message).map(|it| Answer::single(it.allowed)),
    };
    read.map_err(|_| Fault::Protocol)
}

fn count(decisions: &[Decided]) -> Answer {
    let mut answer = Answer::default();
    for decided in decisions {
        match &decided.decision {
            Some(decision) if decision.allowed => answer.allowed += 1,
            Some(_) => answer.refused += 1,
            None => answer.failed += 1,
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use tollgate_proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response};
    use tollgate_proto::v1::{self, decided};

    use super::*;

    fn decision(allowed: bool) -> v1::AllowResponse {
        let scopes = vec![v1::Scope { name: "USER".to_owned(), limit: 3, ..v1::Scope::default() }];
        v1::AllowResponse { allowed, scopes, reason: "WHY".to_owned(), ..Default::default() }
    }

    fn decisions() -> Vec<v1::Decided> {
        let results = [
            decided::Result::Decision(decision(true)),
            decided::Result::Decision(decision(false)),
            decided::Result::Decision(decision(true)),
            decided::Result::Error(v1::Error { code: "X".to_owned(), ..Default::default() }),
        ];
        results.map(|result| v1::Decided { result: Some(result) }).to_vec()
    }

    #[test]
    fn answers_are_read_as_the_protocol_writes_them() {
        let read = |target, bytes: Vec<u8>| answer(target, &bytes).expect("an answer");
        for allowed in [true, false] {
            let one = read(Target::Grpc, decision(allowed).encode_to_vec());
            assert_eq!(one, Answer::single(allowed));
        }
        let expected = Answer { allowed: 2, refused: 1, failed: 1 };
        let batch = v1::AllowBatchResponse { decisions: decisions() };
        assert_eq!(read(Target::GrpcBatch, batch.encode_to_vec()), expected);
        let stream = v1::AllowStreamResponse { id: 7, decisions: decisions() };
        assert_eq!(read(Target::GrpcStream, stream.encode_to_vec()), expected);
        for (code, allowed) in
            [(rate_limit_response::Code::Ok, true), (rate_limit_response::Code::OverLimit, false)]
        {
            let envoy = RateLimitResponse { overall_code: code.into(), ..Default::default() };
            assert_eq!(read(Target::Envoy, envoy.encode_to_vec()), Answer::single(allowed));
        }
        assert_eq!(answer(Target::Grpc, b"\xff"), Err(Fault::Protocol));
    }
}
