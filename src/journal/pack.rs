//! Bytes as they lie in the file: deflated where that makes them smaller, with a sum that shows damage. What is unpacked is bounded, so that a damaged or a made-up
//! file cannot fill the memory.

use std::io::{Read as _, Write as _};

use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};

use super::fault::Fault;
use crate::runtime::journal::JournalError;

/// Shorter texts gain nothing.
const PACK_BYTES_MIN: usize = 96;
/// No single thing that is kept is larger than this, unpacked.
pub(super) const UNPACKED_BYTES_MAX: u64 = 1024 * 1024 * 1024;

const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;

/// Packs `bytes`; one leading byte says how.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() >= PACK_BYTES_MIN {
        let mut encoder = ZlibEncoder::new(vec![DEFLATED], Compression::new(4));
        // Writing to memory does not fail; if it did, the plain form is right too.
        if encoder.write_all(bytes).is_ok()
            && let Ok(packed) = encoder.finish()
            && packed.len() <= bytes.len()
        {
            return packed;
        }
    }
    let mut plain = Vec::with_capacity(bytes.len() + 1);
    plain.push(PLAIN);
    plain.extend_from_slice(bytes);
    plain
}

/// What was packed.
pub(super) fn unpack(packed: &[u8]) -> Result<Vec<u8>, Fault> {
    let damaged = |what: String| Fault::Own(JournalError::Corrupt(format!("a packed entry is damaged: {what}")));
    match packed.split_first() {
        Some((&PLAIN, bytes)) => Ok(bytes.to_vec()),
        Some((&DEFLATED, bytes)) => {
            let mut unpacked = Vec::new();
            let mut decoder = ZlibDecoder::new(bytes).take(UNPACKED_BYTES_MAX + 1);
            decoder.read_to_end(&mut unpacked).map_err(|error| damaged(error.to_string()))?;
            if unpacked.len() as u64 > UNPACKED_BYTES_MAX {
                return Err(damaged("too large".to_owned()));
            }
            Ok(unpacked)
        }
        _ => Err(damaged("unknown form".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(bytes in prop::collection::vec(any::<u8>(), 0..2_000), times in 1_usize..5) {
            let bytes = bytes.repeat(times);
            prop_assert_eq!(unpack(&pack(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&bytes);
        }
    }

    #[test]
    fn text_gets_smaller() {
        let text = r#"{"id":"draft","status":"succeeded"}"#.repeat(20);
        assert!(pack(text.as_bytes()).len() < text.len() / 5);
    }
}
