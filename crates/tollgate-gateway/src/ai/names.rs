//! Names of members, as servers compare them.

/// No name that means something is longer.
const MAX_NAME_BYTES: usize = 64;

/// Whether a server that does not tell small letters from capitals takes one for the other.
pub(super) fn is_alike(known: &str, name: &str) -> bool {
    known.chars().eq(name.chars().map(fold))
}

/// A letter as servers compare it that do not tell small letters from capitals. The Kelvin sign, the long s and the i
/// with and without its dot have letters of the alphabet as their other case.
const fn fold(letter: char) -> char {
    match letter {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        '\u{130}' | '\u{131}' => 'i',
        letter => letter.to_ascii_lowercase(),
    }
}

/// A name as it is compared: servers take `maxTokens` and `max_tokens` for the same. Empty where it is too long to mean
/// something.
pub(super) fn plain(name: &str) -> String {
    if name.len() > MAX_NAME_BYTES {
        return String::new();
    }
    name.chars().filter(|it| !matches!(it, '_' | '-')).map(fold).collect()
}

/// Whether this is what [`plain`] makes of a known name in `snake_case`.
pub(super) fn is_plain(known: &str, plain: &str) -> bool {
    known.chars().filter(|it| *it != '_').eq(plain.chars())
}

/// Whether a name is that of an id: `id`, `file_id`, `fileIds`.
pub(super) fn is_id(name: &str) -> bool {
    let name = name.strip_suffix('s').unwrap_or(name);
    matches!(name, "id" | "ID" | "Id")
        || ["_id", "-id", "Id", "ID"].iter().any(|it| name.ends_with(it))
}

/// Whether a name is that of an address: `url`, `file_uri`, `documentUrls`, `path`.
pub(super) fn is_address(name: &str) -> bool {
    let name = plain(name);
    let name = name.strip_suffix('s').unwrap_or(&name);
    ["url", "uri", "href", "path"].iter().any(|it| name.ends_with(it))
}
