//! Decodes the escapes of a string.

/// The text of a string whose escapes are valid, or `None` if one is half a surrogate pair.
pub(super) fn decoded(raw: &str) -> Option<String> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((before, behind)) = rest.split_once('\\') {
        text.push_str(before);
        let (escape, behind) = behind.split_at(1);
        rest = behind;
        text.push(match escape {
            "b" => '\u{8}',
            "f" => '\u{c}',
            "n" => '\n',
            "r" => '\r',
            "t" => '\t',
            "u" => {
                let unit = take_unit(&mut rest);
                match unit {
                    0xd800..0xdc00 => {
                        rest = rest.strip_prefix("\\u")?;
                        let low = take_unit(&mut rest);
                        let low = low.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                        char::from_u32(0x10000 + ((unit - 0xd800) << 10) + low)?
                    }
                    _ => char::from_u32(unit)?,
                }
            }
            // A quote, a backslash or a slash.
            other => other.chars().next()?,
        });
    }
    text.push_str(rest);
    Some(text)
}

/// Takes the four digits of an escape.
fn take_unit(rest: &mut &str) -> u32 {
    let (digits, behind) = rest.split_at(4);
    *rest = behind;
    u32::from_str_radix(digits, 16).expect("an escape was checked to have four digits")
}
