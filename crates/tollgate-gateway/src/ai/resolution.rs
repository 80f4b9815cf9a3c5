//! How large images are made, where a request says so. Servers that obey make more tokens of an image than usual.
//!
//! A scale is the most tokens that an image has by what is said: 0 where nothing is, and `u64::MAX` where it is not known.

use super::fields::{NO_OPTIONS, READ};
use super::json::Value;
use super::names::plain;

/// Objects that are nested deeper are not searched: no server reads options there.
const MAX_DEPTH: u32 = 4;

/// Pixels of a token, and tokens of a part into which an image is cut.
const PIXELS_PER_TOKEN: u64 = 28 * 28;
const TOKENS_PER_CROP: u64 = 256;

/// What Gemini makes of an image at most.
const GEMINI_TOKENS: u64 = 2_240;

/// Arguments of processors that say nothing about the size of images.
const OTHERS: [&str; 5] = ["fps", "numframes", "maxframes", "samplingrate", "useaudioinvideo"];

/// By what a body says next to the conversation.
pub(super) fn scale_of(whole: Value<'_>) -> u64 {
    let members = whole.members().filter(|it| {
        let name = it.name.as_ref();
        !READ.contains(&name) && !NO_OPTIONS.contains(&name)
    });
    members.map(|it| largest(&plain(&it.name), it.value, 0)).max().unwrap_or(0)
}

fn largest(name: &str, value: Value<'_>, depth: u32) -> u64 {
    if name.ends_with("processorkwargs") {
        return processor(value);
    }
    let own = scale(name, value);
    if depth >= MAX_DEPTH {
        return own;
    }
    let inner = value.members().map(|it| largest(&plain(&it.name), it.value, depth + 1));
    own.max(inner.max().unwrap_or(0))
}

/// By the arguments of an image processor. What is not known may do anything.
fn processor(value: Value<'_>) -> u64 {
    let scales = value.members().filter(|it| !is_off(it.value)).map(|it| {
        let name = plain(&it.name);
        match scale(&name, it.value) {
            _ if OTHERS.contains(&&*name) => 0,
            0 => u64::MAX,
            scale => scale,
        }
    });
    scales.max().unwrap_or(0)
}

fn is_off(value: Value<'_>) -> bool {
    value.is_null() || value.text == "false"
}

/// By one member.
pub(super) fn scale(name: &str, value: Value<'_>) -> u64 {
    let is = |text: &str| value.string().is_some_and(|it| it.to_ascii_lowercase().contains(text));
    match name {
        _ if is_off(value) => 0,
        "detail" if is("original") => u64::MAX,
        "mediaresolution" if is("high") => GEMINI_TOKENS,
        _ if name.contains("highresolution") => u64::MAX,
        _ if name.ends_with("pixels") => {
            value.whole().map_or(u64::MAX, |it| it.div_ceil(PIXELS_PER_TOKEN))
        }
        _ if ["crops", "dynamicpatch", "tiles"].iter().any(|it| name.ends_with(it)) => {
            value.whole().map_or(u64::MAX, |it| it.saturating_mul(TOKENS_PER_CROP))
        }
        _ => 0,
    }
}
