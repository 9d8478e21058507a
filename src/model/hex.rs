//! Bytes as hexadecimal digits and back. Knows nothing of what the bytes are.

/// The bytes as lower-case digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

/// The `N` bytes of twice as many digits, of either case; `None` for everything else.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (bytes, text) in [([0, 0], "0000"), ([255, 16], "ff10"), ([0x0a, 0xbc], "0abc")] {
            assert_eq!((hex(&bytes).as_str(), unhex(text)), (text, Some(bytes)));
        }
        assert_eq!(unhex("FF10"), Some([255_u8, 16]));
        for text in ["", "0", "00000", "000", "zz00", "+100", "가나"] {
            assert_eq!(unhex::<2>(text), None, "{text}");
        }
    }
}
