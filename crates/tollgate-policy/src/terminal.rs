//! Characters that a terminal obeys instead of showing them. Text of others is escaped before people read it.

use std::fmt::Write as _;

/// Whether terminals obey a character instead of showing it: control characters, which include DEL and U+0080 to U+009F
/// (U+009B is `ESC [`), and those that hide text, break lines or change its direction, so that it reads as another.
pub fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text in quotes as YAML reads it, with every character escaped that a terminal would obey.
pub fn quoted_yaml(text: &str) -> String {
    inline_yaml(&serde_json::Value::from(text))
}

/// A value on one line as YAML reads it, escaped likewise.
pub(crate) fn inline_yaml(value: &serde_json::Value) -> String {
    // What is escaped can only be in strings.
    let json = value.to_string();
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        let code = u32::from(letter);
        // Writing to a string does not fail. Unlike JSON, YAML reads no pairs of surrogates as one character.
        let _ = match code {
            _ if !is_obeyed(letter) => write!(safe, "{letter}"),
            0x1_0000.. => write!(safe, "\\U{code:08x}"),
            _ => write!(safe, "\\u{code:04x}"),
        };
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_read_as_it_was_and_holds_nothing_that_terminals_obey() {
        for text in ["", "a\"\\é", "\u{202e}a\u{2028}\u{e0041}\u{9b}\n\u{7f}", "\u{1f600}"] {
            let quoted = quoted_yaml(text);
            assert!(!quoted.contains(is_obeyed), "{quoted:?}");
            assert_eq!(serde_saphyr::from_str::<String>(&quoted).unwrap(), text, "{quoted}");
        }
    }
}
