//! The size of a picture in pixels, read from the head of its file: JPEG, PNG, GIF and WebP. Believes no EXIF and decodes nothing.

/// What a file starts with says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A picture whose size is written in its head.
    Sized {
        /// In pixels, as stored.
        width: u32,
        /// In pixels, as stored.
        height: u32,
    },
    /// A picture of a known kind, but its size is not where it belongs.
    Unsized,
    /// No picture.
    NoPicture,
}

/// Brands of HEIF pictures, AVIF included.
const HEIF_BRANDS: [&[u8]; 8] = [b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif"];

/// Looks at the head of a file.
pub(super) fn kind_of(head: &[u8]) -> Kind {
    let size = match head {
        [0xFF, 0xD8, 0xFF, ..] => jpeg_size(head),
        [0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, ..] => png_size(head),
        [b'G', b'I', b'F', b'8', ..] => gif_size(head),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp_size(head),
        [b'I', b'I', 0x2A, 0x00, ..] | [b'M', b'M', 0x00, 0x2A, ..] => None,
        // Videos share this container; its brand says which it is.
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..]
            if HEIF_BRANDS.iter().any(|known| brand.starts_with(known)) =>
        {
            None
        }
        _ => return Kind::NoPicture,
    };
    match size {
        Some((width, height)) if width > 0 && height > 0 => Kind::Sized { width, height },
        _ => Kind::Unsized,
    }
}

/// Walks the segments up to the frame header. Scan data never comes before it.
fn jpeg_size(head: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        if *head.get(at)? != 0xFF {
            return None;
        }
        let marker = *head.get(at + 1)?;
        match marker {
            0xFF => at += 1,
            0x01 | 0xD0..=0xD7 => at += 2,
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                return Some((big_u16(head, at + 7)?, big_u16(head, at + 5)?));
            }
            0xD9 | 0xDA => return None,
            _ => at += 2 + usize::try_from(big_u16(head, at + 2)?.max(2)).ok()?,
        }
    }
}

fn png_size(head: &[u8]) -> Option<(u32, u32)> {
    let read = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    Some((read(16)?, read(20)?))
}

fn gif_size(head: &[u8]) -> Option<(u32, u32)> {
    let read = |at: usize| Some(u32::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?)));
    Some((read(6)?, read(8)?))
}

fn webp_size(head: &[u8]) -> Option<(u32, u32)> {
    let u24 = |at: usize| {
        let bytes = head.get(at..at + 3)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
    };
    match head.get(12..16)? {
        b"VP8X" => Some((u24(24)? + 1, u24(27)? + 1)),
        b"VP8L" => {
            let bits = u32::from_le_bytes(head.get(21..25)?.try_into().ok()?);
            Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
        }
        b"VP8 " => {
            let read = |at: usize| Some(u32::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?) & 0x3FFF));
            Some((read(26)?, read(28)?))
        }
        _ => None,
    }
}

fn big_u16(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let jpeg = [0xFF, 0xD8, 0xFF, 0xE0, 0, 4, 9, 9, 0xFF, 0xC0, 0, 17, 8, 0x01, 0xE0, 0x02, 0x80, 3];
        let mut png = vec![0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, 0, 0, 0, 13, b'I', b'H', b'D', b'R'];
        png.extend([0, 0, 0, 5, 0, 0, 0, 7]);
        for (head, want) in [
            (&jpeg[..], Kind::Sized { width: 640, height: 480 }),
            (&jpeg[..14], Kind::Unsized),
            (&[0xFF, 0xD8, 0xFF, 0xE0, 0xFF, 0xFF], Kind::Unsized),
            (&png, Kind::Sized { width: 5, height: 7 }),
            (b"GIF89a\x02\x00\x03\x00", Kind::Sized { width: 2, height: 3 }),
            (b"\0\0\0\x18ftypheic", Kind::Unsized),
            (b"\0\0\0\x18ftypmp42", Kind::NoPicture),
            (b"hello", Kind::NoPicture),
            (b"", Kind::NoPicture),
        ] {
            assert_eq!(kind_of(head), want, "{head:?}");
        }
    }
}
