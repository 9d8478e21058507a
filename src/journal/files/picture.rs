//! Smaller copies of photos for models that see: upright, in JPEG, with nothing of the camera's own words in them. It runs on a blocking
//! thread, and what a picture may cost is asked before its pixels are read.

use std::{
    fs::{self, File},
    io::{BufReader, BufWriter, Write as _},
    path::Path,
};

use image::{
    DynamicImage, ImageDecoder as _, ImageReader, Limits, Rgb, RgbImage, codecs::jpeg::JpegEncoder,
    imageops::FilterType,
};

/// The most pixels of an original.
const PIXELS_MAX: u64 = 100_000_000;
/// The longest side of an original.
const SIDE_MAX: u32 = 30_000;
/// Bytes that a decoder may take, for itself and its picture.
const DECODER_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// JPEG's quality: models do not see more.
const QUALITY: u8 = 85;

/// Why there is no smaller copy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PictureError {
    /// It is none, or broken, or of a kind that is not read here.
    #[error("not a picture that can be read: {0}")]
    Unreadable(String),
    /// It would take too much to read.
    #[error("the picture is too large: {width} x {height} pixels")]
    TooLarge {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// The disk says so.
    #[error("{0}")]
    Disk(String),
}

/// Writes a copy of `original` to `copy`, its longer side at most `side_max` pixels. Blocks.
pub(super) fn write_copy(original: &Path, passing: &Path, copy: &Path, side_max: u32) -> Result<(), PictureError> {
    let picture = upright(original, side_max)?;
    let disk = |error: std::io::Error| PictureError::Disk(error.to_string());
    let write = || -> Result<(), PictureError> {
        let mut writer = BufWriter::new(File::create(passing).map_err(disk)?);
        // The encoder writes pixels and tables: EXIF, colour profile and comments of the original are not handed to it.
        JpegEncoder::new_with_quality(&mut writer, QUALITY)
            .encode_image(&picture)
            .map_err(|error| PictureError::Disk(error.to_string()))?;
        writer.flush().map_err(disk)?;
        drop(writer);
        fs::rename(passing, copy).map_err(disk)
    };
    write().inspect_err(|_| {
        // Nobody else knows of it.
        let _ = fs::remove_file(passing);
    })
}

fn upright(original: &Path, side_max: u32) -> Result<RgbImage, PictureError> {
    let unreadable = |error: image::ImageError| PictureError::Unreadable(error.to_string());
    let file = File::open(original).map_err(|error| PictureError::Disk(error.to_string()))?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let mut reader = reader.map_err(|error| PictureError::Disk(error.to_string()))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODER_BYTES_MAX);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(unreadable)?;
    let (width, height) = decoder.dimensions();
    let is_too_large = u64::from(width) * u64::from(height) > PIXELS_MAX || decoder.total_bytes() > DECODER_BYTES_MAX;
    if is_too_large {
        return Err(PictureError::TooLarge { width, height });
    }
    let orientation = decoder.orientation().map_err(unreadable)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    // Both sides have the same bound, so turning the smaller picture gives the same and takes less.
    if picture.width().max(picture.height()) > side_max {
        picture = picture.resize(side_max, side_max, FilterType::Triangle);
    }
    picture.apply_orientation(orientation);
    Ok(on_white(&picture))
}

/// JPEG knows nothing transparent: what shows through is white.
fn on_white(picture: &DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.to_rgb8();
    }
    let seen = picture.to_rgba8();
    RgbImage::from_fn(seen.width(), seen.height(), |x, y| {
        let [red, green, blue, alpha] = seen.get_pixel(x, y).0.map(u32::from);
        let mix = |channel: u32| u8::try_from((channel * alpha + 255 * (255 - alpha)) / 255).unwrap_or(u8::MAX);
        Rgb([mix(red), mix(green), mix(blue)])
    })
}
