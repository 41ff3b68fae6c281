"""The study of ``digits.py`` with its states in a bucket, which takes two gigabytes at most.

``pip install 'dasktune[s3]'``, say who you are (``AWS_ACCESS_KEY_ID`` and
``AWS_SECRET_ACCESS_KEY``, or ``~/.aws/credentials``) and, for a server that is not Amazon's,
where it is (``AWS_ENDPOINT_URL=http://minio:9000``). Then: ``dasktune run examples/bucket.py
--config storage=s3://your-bucket/digits``. Whoever runs it on the same bucket, on any machine,
trains nothing that is there. ``gs://`` and ``az://`` go through fsspec, with the library that it
names; this file was tried with ``s3://``.
"""

from __future__ import annotations

import digits

import dasktune as dt

tuner = digits.tuner


def study(
    storage: str = "s3://your-bucket/digits", budget: str = "2GB", keep: str = "best:3"
) -> dt.Study:
    """Return the study, continued if it was begun before.

    Parameters
    ----------
    storage
        Where the states go; names of trials and their metrics go into ``dasktune.db`` here.
    budget
        Most that they may take. What is cheapest to train again goes first.
    keep
        What never goes: the last states of the three best trials.
    """
    return dt.create_study(
        digits.DigitsTrainer,
        name="digits",
        storage=storage,
        metric="accuracy",
        direction="maximize",
        budget=budget,
        keep=keep,
        load_if_exists=True,
    )
