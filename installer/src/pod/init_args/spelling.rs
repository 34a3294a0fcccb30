//! Spellings that `istio-iptables` takes and a policy file does not, since iptables parses the values there. A text
//! with no such spelling is unchanged: the policy file's parser reports it.

use std::borrow::Cow;

/// Returns a number in decimal: `+8080` and `0x1f90` are 8080.
pub(super) fn number(text: &str) -> Cow<'_, str> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) if is_all(hexadecimal, u8::is_ascii_hexdigit) => {
            u32::from_str_radix(hexadecimal, 16).ok()
        }
        // A leading zero stays, so that it is refused.
        None if is_all(digits, u8::is_ascii_digit) => return Cow::Borrowed(digits),
        _ => None,
    };
    parsed.map_or(Cow::Borrowed(text), |number| Cow::Owned(number.to_string()))
}

/// Returns a port, or a range of ports with a hyphen: `4000:5000`, `:5000` (from 0) and `4000:` (to 65535).
pub(super) fn ports(text: &str) -> Cow<'_, str> {
    let Some((first, last)) = text.split_once(':') else { return number(text) };
    let or = |port, otherwise| if str::is_empty(port) { Cow::Borrowed(otherwise) } else { number(port) };
    Cow::Owned(format!("{}-{}", or(first, "0"), or(last, "65535")))
}

/// Returns a mode: `istio-iptables` compares with `TPROXY` only, so any case of `redirect` is REDIRECT. Other words are
/// unchanged, because `tproxy` and `NONE` mean REDIRECT there.
pub(super) fn mode(text: &str) -> &str {
    if text.eq_ignore_ascii_case("REDIRECT") { "REDIRECT" } else { text }
}

fn is_all(text: &str, belongs: impl Fn(&u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|byte| belongs(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_read_as_iptables_writes_them() {
        for (text, decimal) in [
            ("8080", "8080"),
            ("+8080", "8080"),
            ("0x1f90", "8080"),
            ("0X1F90", "8080"),
            ("+0x1f90", "8080"),
            ("4000:5000", "4000-5000"),
            (":5000", "0-5000"),
            ("4000:", "4000-65535"),
            ("0xfa0:+5000", "4000-5000"),
        ] {
            assert_eq!(ports(text), decimal, "{text}");
        }
        for unchanged in ["", "+", "0x", "0xg", "++1", "05000", "-1", "http", "0x100000000", "10.0.0.0/8"] {
            assert_eq!(number(unchanged), unchanged);
        }
        assert_eq!(number("+05000"), "05000", "the leading zero is refused later");
    }
}
