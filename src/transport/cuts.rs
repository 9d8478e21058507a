//! Test help: where the bytes of a stream are cut, and what a decoder makes of the pieces.

use proptest::sample::Index;

use super::stream::StreamDecoder;

/// Everything that comes out of a stream in these pieces, and what it failed with.
pub(crate) fn decode<'a, D: StreamDecoder>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<D::Item>, Option<D::Error>) {
    let mut decoder = D::default();
    let mut items = Vec::new();
    let mut drain = |decoder: &mut D| {
        loop {
            match decoder.pop() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    };
    for piece in pieces {
        decoder.push(piece);
        drain(&mut decoder);
    }
    decoder.finish();
    let error = drain(&mut decoder);
    (items, error)
}

/// The bytes as reads of these sizes gave them, the last one as short as it was. All of them, or the case is none.
pub(crate) fn in_sizes<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for size in sizes {
        let (piece, behind) = rest.split_at((*size).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    assert!(rest.is_empty(), "{} bytes are left over", rest.len());
    pieces
}

/// The bytes cut at these places, in order.
pub(crate) fn at<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    places.push(bytes.len());
    let begins = std::iter::once(0).chain(places.iter().copied());
    begins.zip(&places).map(|(from, to)| &bytes[from..*to]).collect()
}
