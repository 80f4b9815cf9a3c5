//! Hides the name that an upstream has for a model in a plain answer, while the answer passes.
//!
//! Only the text that is the `model` of the outermost object is replaced; every other byte passes as it is. Nothing of
//! the answer is kept.

use bytes::{Bytes, BytesMut};

/// The member whose value is replaced.
const MODEL: &[u8] = b"model";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Between texts.
    Outside,
    /// In a name of the outermost object.
    Name,
    /// In the text that is replaced.
    Model,
    /// In any other text.
    Text,
}

/// Replaces the name of the model.
#[derive(Debug)]
pub(crate) struct Renamer {
    /// What is put in its place, as JSON.
    name: Bytes,
    depth: u32,
    place: Place,
    is_escaped: bool,
    /// Whether the outermost value is an object.
    is_object: bool,
    /// Whether a text at this place would be a name of the outermost object.
    wants_name: bool,
    /// The last such name, up to a byte more than [`MODEL`] has.
    last: Vec<u8>,
}

impl Renamer {
    /// Puts this name, as JSON, in the place of every other.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: Bytes::copy_from_slice(name.as_bytes()),
            depth: 0,
            place: Place::Outside,
            is_escaped: false,
            is_object: false,
            wants_name: false,
            last: Vec::with_capacity(MODEL.len() + 1),
        }
    }

    /// What the client gets of the next piece.
    pub(crate) fn pass(&mut self, piece: &Bytes) -> Bytes {
        let mut out = BytesMut::new();
        let (mut from, mut is_changed) = (0, self.place == Place::Model);
        for (at, byte) in piece.iter().enumerate() {
            let before = self.place;
            self.step(*byte);
            match (before, self.place) {
                (Place::Outside, Place::Model) => {
                    out.extend_from_slice(&piece.slice(from..at));
                    out.extend_from_slice(&self.name);
                    is_changed = true;
                }
                (Place::Model, Place::Outside) => from = at + 1,
                _ => {}
            }
        }
        if !is_changed {
            return piece.clone();
        }
        if self.place != Place::Model {
            out.extend_from_slice(&piece.slice(from..));
        }
        out.freeze()
    }

    fn step(&mut self, byte: u8) {
        if self.place != Place::Outside {
            self.step_text(byte);
            return;
        }
        let is_outermost = self.depth == 1 && self.is_object;
        match byte {
            b'"' if is_outermost && self.wants_name => {
                self.last.clear();
                self.place = Place::Name;
            }
            b'"' if is_outermost && self.last == MODEL => self.place = Place::Model,
            b'"' => self.place = Place::Text,
            b'{' | b'[' => {
                if self.depth == 0 {
                    self.is_object = byte == b'{';
                    self.wants_name = self.is_object;
                }
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' if is_outermost => {
                self.last.clear();
                self.wants_name = true;
            }
            b':' if is_outermost => self.wants_name = false,
            _ => {}
        }
    }

    fn step_text(&mut self, byte: u8) {
        let was_escaped = std::mem::take(&mut self.is_escaped);
        match byte {
            b'"' if !was_escaped => self.place = Place::Outside,
            b'\\' if !was_escaped => {
                self.is_escaped = true;
                self.note(byte);
            }
            _ => self.note(byte),
        }
    }

    fn note(&mut self, byte: u8) {
        if self.place == Place::Name && self.last.len() <= MODEL.len() {
            self.last.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(text: &str, cuts: &[usize]) -> String {
        let (mut renamer, mut from, mut out) = (Renamer::new(r#""m""#), 0, Vec::new());
        for cut in cuts.iter().copied().chain([text.len()]) {
            let cut = cut.clamp(from, text.len());
            let piece = Bytes::copy_from_slice(&text.as_bytes()[from..cut]);
            out.extend_from_slice(&renamer.pass(&piece));
            from = cut;
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_outermost_model_is_replaced() {
        for (before, after) in [
            (r#"{"model":"org/x"}"#, r#"{"model":"m"}"#),
            (r#"{ "model" : "a\"b\\" , "x":1}"#, r#"{ "model" : "m" , "x":1}"#),
            (r#"{"a":{"model":"org/x"},"model":"y"}"#, r#"{"a":{"model":"org/x"},"model":"m"}"#),
            (r#"{"a":"model","b":"\"model\":\"x\""}"#, r#"{"a":"model","b":"\"model\":\"x\""}"#),
            (
                r#"{"models":"x","mode":"x","model":null}"#,
                r#"{"models":"x","mode":"x","model":null}"#,
            ),
            (r#"{"model":{"model":"x"},"b":"c"}"#, r#"{"model":{"model":"x"},"b":"c"}"#),
            (r#"{"model":["x"],"model":"x"}"#, r#"{"model":["x"],"model":"m"}"#),
            (r#"["model","x",{"model":"x"}]"#, r#"["model","x",{"model":"x"}]"#),
            (r#""model""#, r#""model""#),
            ("<html>model</html>", "<html>model</html>"),
        ] {
            assert_eq!(run(before, &[]), after);
        }
    }

    proptest! {
        #[test]
        fn borders_of_pieces_change_nothing(
            mut cuts in prop::collection::vec(0_usize..120, 0..10),
            content in "\\PC{0,30}",
            name in "\\PC{0,12}",
        ) {
            cuts.sort_unstable();
            let mut answer = serde_json::json!({"id": "model", "choices": [{"message": {"content": content, "model": name}}], "model": name});
            let text = answer.to_string();
            answer["model"] = serde_json::json!("m");
            let seen: serde_json::Value = serde_json::from_str(&run(&text, &cuts)).unwrap();
            prop_assert_eq!(seen, answer);
        }
    }
}
