from Cython.Build import cythonize
from setuptools import Extension, setup

setup(name="stele-cython", version="0.1.0", ext_modules=cythonize([Extension("stele_cython", ["stele_cython.pyx"], extra_compile_args=["-O3"])]))
