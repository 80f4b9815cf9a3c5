//! How often a body is read before anything is charged.

use super::super::ask::{Ask, Call};
use super::super::json::work;
use super::super::text::{Tariff, TextSink};

/// Every byte of a body is read so many times at most, however its values lie in each other.
const MAX_READS: usize = 100;

/// The bytes that are read of a body before it is charged, as a multiple of its length.
fn reads(call: Call, body: &str) -> usize {
    work::take();
    let Ok(ask) = Ask::read(call, body.as_bytes(), None) else {
        return work::take().div_ceil(body.len());
    };
    let mut sink = TextSink::new(Tariff::default());
    ask.prompt(&mut sink);
    let _ = ask.check_history(&Tariff { history_tokens: 0, ..Tariff::default() });
    let _ = ask.longest_answer(|| 1_000);
    work::take().div_ceil(body.len())
}

fn nested(open: &str, close: &str, levels: usize, length: usize) -> String {
    let text = r"\u0061bc ".repeat(length / 8);
    format!("{}\"{text}\"{}", open.repeat(levels), close.repeat(levels))
}

#[test]
fn no_nesting_makes_a_body_be_read_again_and_again() {
    const LENGTH: usize = 10_000;
    let shapes = [
        (r#"[{"type":"namespace","name":"n","tools":"#, "}]"),
        (r#"{"tools":"#, "}"),
        (r#"[{"type":"function","function":"#, "}]"),
        (r#"{"content":"#, "}"),
        (r#"[{"type":"text","content":"#, "}]"),
        (r#"[{"type":"tool_result","content":"#, "}]"),
        (r#"{"type":"image","source":"#, "}"),
        (r#"{"image_url":"#, "}"),
        (r#"{"options":"#, "}"),
        (r#"{"thinking":"#, "}"),
        (r#"{"search_parameters":"#, "}"),
        (r#"{"file":"#, "}"),
        (r#"{"x":"#, "}"),
        ("[", "]"),
    ];
    let fields = ["tools", "functions", "messages", "input", "prompt", "xx_unknown", "metadata"];
    let calls = [Call::Chat, Call::Completions, Call::Responses, Call::Messages];
    let (mut most, mut wrong) = (0, Vec::new());
    for (open, close) in shapes {
        for field in fields {
            for levels in [1, 3, 6, 12, 60] {
                let value = nested(open, close, levels, LENGTH);
                let conversation = format!(r#"[{{"role":"user","content":{value}}}]"#);
                for value in [&value, &conversation] {
                    let body = format!(r#"{{"model":"m","max_tokens":1,"{field}":{value}}}"#);
                    for call in calls {
                        let reads = reads(call, &body);
                        most = most.max(reads);
                        if reads > MAX_READS {
                            wrong.push(format!("{reads}: {call:?} {field} {levels} x {open}"));
                        }
                    }
                }
            }
        }
    }
    println!("each byte is read {most} times at most");
    assert!(wrong.is_empty(), "{} bodies:\n{}", wrong.len(), wrong.join("\n"));
}
