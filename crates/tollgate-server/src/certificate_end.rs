//! When a certificate ends: the one field that is needed of X.509.

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of the validity, in milliseconds since 1970; none if the certificate has another shape.
pub(crate) fn certificate_end(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate, _) = element(certificate, Some(SEQUENCE))?;
    let (_, body, _) = element(certificate, Some(SEQUENCE))?;
    let (tag, _, after_first) = element(body, None)?;
    // The version is left out in the oldest certificates; the serial number follows.
    let rest = if tag == VERSION { element(after_first, None)?.2 } else { after_first };
    let (_, _, rest) = element(rest, Some(SEQUENCE))?;
    let (_, _, rest) = element(rest, Some(SEQUENCE))?;
    let (_, validity, _) = element(rest, Some(SEQUENCE))?;
    let (_, _, rest) = element(validity, None)?;
    let (tag, end, _) = element(rest, None)?;
    time(tag, std::str::from_utf8(end).ok()?)
}

/// The first element: its tag, its content, and what follows it.
fn element(bytes: &[u8], wanted: Option<u8>) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    if wanted.is_some_and(|wanted| wanted != *tag) {
        return None;
    }
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..=0x7f => (short, rest),
        long @ 0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(long - 0x80)?;
            (digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// `YYMMDDHHMMSSZ`, or with a year of four digits.
fn time(tag: u8, text: &str) -> Option<i64> {
    let text = match tag {
        // RFC 5280: 50 to 99 are of the last century.
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let part = |from: usize| text.get(from..from + 2);
    let year = text.get(..4)?;
    let (month, day, hour, minute, second) = (part(4)?, part(6)?, part(8)?, part(10)?, part(12)?);
    tollgate_control::draft::instant(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_time_are_read() {
        assert_eq!(time(UTC_TIME, "700101000001Z"), Some(1_000));
        assert_eq!(time(UTC_TIME, "491231235959Z"), Some(2_524_607_999_000));
        assert_eq!(time(GENERALIZED_TIME, "19700101000002Z"), Some(2_000));
        assert_eq!(time(0x04, "700101000001Z"), None);
        assert_eq!(time(UTC_TIME, "7001"), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for wrong in
            [&[][..], &[0x30], &[0x30, 0x82, 0xff, 0xff], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]]
        {
            assert_eq!(certificate_end(&CertificateDer::from(wrong)), None);
        }
    }
}
