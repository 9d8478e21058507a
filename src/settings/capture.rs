//! `[capture]`: which attempts are kept word for word, and for how long.

use std::time::Duration;

use super::{keep::keep, reader::Reader};

/// Which attempts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// None.
    Off,
    /// Those that did not end well.
    Errors,
    /// Those, and a share of the others.
    Sample,
    /// All.
    All,
}

/// `[capture]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaptureTable {
    /// Which attempts.
    pub mode: CaptureMode,
    /// The share of good ones that `sample` keeps, 0 to 1.
    pub sample_share: f64,
    /// How long.
    pub keep: Duration,
}

/// Reads `[capture]`.
pub(super) fn read_capture(root: &mut Reader<'_, '_>) -> CaptureTable {
    let mut reader = root.table("capture");
    let words = [
        ("off", CaptureMode::Off),
        ("errors", CaptureMode::Errors),
        ("sample", CaptureMode::Sample),
        ("all", CaptureMode::All),
    ];
    let mode = reader.choice("mode", CaptureMode::Off, &words, &[]);
    let sample_share = reader.number("sample_share", 0.01);
    if !(0.0..=1.0).contains(&sample_share) {
        reader.refuse("sample_share", "must be a share from 0 to 1");
    }
    if reader.is_given("sample_share") && mode != CaptureMode::Sample {
        reader.warn("sample_share", "is not used: capture.mode is not \"sample\"");
    }
    let keep = keep(&mut reader, "keep", Duration::from_secs(72 * 3_600));
    reader.finish(&[]);
    CaptureTable { mode, sample_share, keep }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    #[test]
    fn defaults_changes_and_mistakes() {
        let plain = Given::config("").load().unwrap().capture;
        let wanted = CaptureTable { mode: CaptureMode::Off, sample_share: 0.01, keep: Duration::from_secs(259_200) };
        assert_eq!(plain, wanted);
        let text = "[capture]\nmode = 'sample'\nsample_share = 0.5\nkeep = '1d'\n";
        let changed = Given::config(text).load().unwrap();
        let wanted = CaptureTable { mode: CaptureMode::Sample, sample_share: 0.5, keep: Duration::from_secs(86_400) };
        assert_eq!(changed.capture, wanted);
        assert!(changed.warnings.is_empty());
        let odd = Given::config("[capture]\nmode = 'all'\nsample_share = 0.5\n").load().unwrap();
        assert_eq!(odd.warnings.len(), 1);
        for (text, line) in [
            ("mode = 'on'", "capture.mode = \"on\": must be one of off, errors, sample, all"),
            (
                "keep = 'off'",
                "capture.keep = \"off\": must be a number and a unit, as in \"500ms\", \"30s\", \"1m30s\"; or days, as in \"30d\"",
            ),
        ] {
            let error = Given::config(&format!("[capture]\n{text}\n")).load().unwrap_err().to_string();
            assert_eq!(error, format!("w.toml:2: {line}"));
        }
        let error = Given::config("[capture]\nmode = 'sample'\nsample_share = nan\n").load().unwrap_err().to_string();
        assert_eq!(error, "w.toml:3: capture.sample_share = nan: must be a share from 0 to 1");
    }
}
