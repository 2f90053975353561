"""Fourier transforms against CPU PyTorch."""

import pytest
import torch
from agreement import agree_on
from rule_inputs import out_forms, values, with_gradients, words

X = values(3, 4, 5)
Z = values(3, 4, 5, dtype=torch.complex64)


@pytest.mark.parametrize("norm", [None, "ortho", "forward", "backward"])
@pytest.mark.parametrize("name", words("fft ifft rfft irfft hfft ihfft"))
def test_one_dimension(name, norm):
    function = getattr(torch.fft, name)
    x = X if name in ("rfft", "ihfft") else Z
    for dim in (-1, 0, 1):
        for n in (None, 3, 8):
            agree_on(lambda x, n=n, d=dim: function(x, n, d, norm), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: function(x, norm=norm)), x, tolerance=1e-4)
    if name in ("fft", "ifft"):
        agree_on(lambda x: function(x, norm=norm), X, tolerance=1e-5)


@pytest.mark.parametrize("name", words("fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"))
def test_several_dimensions(name):
    function = getattr(torch.fft, name)
    x = X if name.startswith("r") else Z

    # The order of dimensions in memory is that of PyTorch's shape function, which CPU does not
    # always follow.
    def dense(x):
        results, gradients = with_gradients(lambda x: function(x))(x)
        return [t.contiguous() for t in (*results, *gradients, function(x.detach().mT))]

    agree_on(dense, x, tolerance=1e-4)
    agree_on(lambda x: function(x, dim=(0, 2)), x, tolerance=1e-4)
    agree_on(lambda x: function(x, s=(2, 6), dim=(2, 0), norm="ortho"), x, tolerance=1e-4)


def test_dtypes_and_layouts():
    agree_on(torch.fft.fft, Z.to(torch.complex128), tolerance=1e-12)
    agree_on(torch.fft.rfft, X.double(), tolerance=1e-12)
    agree_on(torch.fft.fft, torch.arange(6), tolerance=1e-5)
    agree_on(lambda x: torch.fft.fft(x.conj()), Z, tolerance=1e-5)
    agree_on(lambda x: torch.fft.fft(x[:, ::2, 1:]), Z, tolerance=1e-5)
    agree_on(lambda x: torch.fft.fft(x[..., :1]), Z)
    agree_on(lambda x: torch.fft.fft(x, 0), Z)
    agree_on(lambda x: torch.fft.fft(x[0, 0, 0]), Z)
    agree_on(out_forms(lambda x, **out: torch.fft.fft(x, **out), wider=False), Z, tolerance=1e-5)


def test_shifts_and_frequencies():
    agree_on(lambda x: [torch.fft.fftshift(x), torch.fft.ifftshift(x, 1)], X)
    agree_on(lambda x: torch.fft.fftfreq(5, device=x.device), X)


def test_stft():
    signal, window = values(2, 40), torch.hann_window(8)

    def there(x, w):
        return torch.view_as_real(torch.stft(x, 8, 4, window=w, return_complex=True))

    agree_on(with_gradients(there), signal, window, tolerance=1e-3)

    def and_back(x, w):
        spectrum = torch.stft(x, 8, 2, window=w, return_complex=True)
        return torch.istft(spectrum, 8, 2, window=w)

    agree_on(and_back, signal, window, tolerance=1e-4)
